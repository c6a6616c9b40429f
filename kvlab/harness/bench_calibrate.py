"""`kvlab bench calibrate`: the constants of a cost model, measured here, as files that gpu=, vmm= and cost= take."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kvlab.errors import UsageError
from kvlab.harness import output, provenance
from kvlab.harness.compose import HERE, Composer
from kvlab.harness.validate import SIMULATED
from kvlab.record.others import OthersShare, others_words

if TYPE_CHECKING:
    from kvlab.bench.calibrate import Calibration

NAME = "here"
HELP = f"""\
calibrate measures this machine with a real model and writes what executor=simulated takes as gpu, vmm and cost:
  out=NAME (here): {HERE}/gpu/NAME.yaml and the same under vmm and cost, found where kvlab is started in that directory;
  --out FOLDER writes to another one than {HERE}. Any override of a real run that counts: model=, dtype=, attention=,
  strategy=, engine.threads=. Another thread count or dtype is another machine: calibrate again.
  With engine.threads=1 it measures CPU time, which other programs hardly change."""


def run(args: argparse.Namespace) -> int:
    names = [line.partition("=")[2] for line in args.overrides if line.startswith("out=")]
    overrides = [line for line in args.overrides if not line.startswith("out=")]
    name = names[-1] if names else NAME
    if not re.fullmatch(r"[A-Za-z0-9_]+", name):
        raise UsageError(f"out={name}: allowed is a name of letters, digits and _ ; the folder is --out")
    folder = args.out or Path(HERE)
    output.check_folder(folder)
    config, found, share = _measured(overrides)
    head = heading(name, config, found.errors, share)
    for group in SIMULATED:
        _write(folder / group / f"{name}.yaml", head, getattr(found, group))
    if args.json:
        nodes = {group: getattr(found, group) for group in SIMULATED}
        print(json.dumps({**nodes, "errors": found.errors}, indent=1))
    else:
        choices = " ".join(f"{group}={name}" for group in SIMULATED)
        print(f"{head}wrote {folder}/{{{','.join(SIMULATED)}}}/{name}.yaml: executor=simulated {choices}")
    return 0


def heading(name: str, config: dict[str, Any], errors: dict[str, float], share: float | None) -> str:
    """Comment lines: on what it was measured, and how far the fit is off. share: of the CPU that others used."""
    facts = provenance.brief("torch")
    threads = config["engine"]["threads"] or "as many threads as torch takes"
    commit, others = facts["commit"] or "unknown", others_words(share)
    return f"""\
# Measured by `kvlab bench calibrate out={name}` on {facts["cpu"]}, {facts["cores"]} cores; threads: {threads};
# {config["model"]["name"]}, {config["dtype"]}, attention={config["attention"]["name"]}; torch {facts["torch"]}; \
commit {commit}; others used {others} of the CPU.
# Off the launches it was fitted to: median {errors["decode_median"]:.1%} decoding, {errors["prefill_median"]:.1%} \
prompts; all together {errors["total"]:+.1%}.
"""


def _measured(overrides: list[str]) -> tuple[dict[str, Any], Calibration, float | None]:
    """The run's configuration, what was found, and the share of the CPU that others used meanwhile."""
    with Composer() as composer:
        config = composer.compose(["max_len=1024", "engine.max_seqs=64", *overrides]).config
    if config["executor"] != "real":
        raise UsageError("executor=simulated: there is nothing to measure; allowed is executor=real")
    if config["device"] != "cpu":
        raise UsageError(f"device={config['device']}: it measures this machine's CPU; allowed is device=cpu")
    from kvlab.bench.calibrate import calibrate
    from kvlab.model.load import load

    model = load(config["model"], config["dtype"]).model
    memory = provenance.available_bytes() or provenance.machine()["memory_bytes"]
    others = OthersShare()
    found = calibrate(config, model, memory, lambda line: print(f"measuring {line}", file=sys.stderr))
    return config, found, others.share()


def _write(path: Path, head: str, node: dict[str, Any]) -> None:
    with output.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    output.write(path, head + yaml.safe_dump(node, sort_keys=False, default_flow_style=None, width=118))

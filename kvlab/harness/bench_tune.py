"""`kvlab bench tune device=cuda`: measures which shape the kernels' programs should have on this GPU, and keeps it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.errors import UsageError
from kvlab.harness import output
from kvlab.harness.bench_kernels import parse
from kvlab.harness.progress import Bar
from kvlab.harness.table import grid

if TYPE_CHECKING:
    from kvlab.kernels.gpu.tuning import Key, Tuned

LEFT = {"kernel", "dtype", "slots", "chosen"}
TAKEN = ("device", "batch", "length", "q_heads", "kv_heads", "head_dim", "dtype", "block_sizes")
HELP = """\
tune takes device=cuda and the shapes of kernels (of batch and length the first), tries at most eight ways to cut up
decode and prefill over rows and each block size, and keeps the fastest in the user's cache, where every run looks."""
HEAD = ["kernel", "dtype", "head", "groups", "slots", "chosen", "us", "committed us", "tried", "too large"]


def run(args: argparse.Namespace) -> int:
    if wrong := [line for line in args.overrides if line.partition("=")[0] not in TAKEN]:
        raise UsageError(f"{wrong[0]}: allowed with kvlab bench tune are {', '.join(TAKEN)}")
    values = parse(args.overrides)
    if values["device"] != ["cuda"]:
        raise UsageError(f"device={values['device'][0]}: kernels are tuned on a GPU; allowed is device=cuda")
    from kvlab.bench.tune import Shape, keys_of, tune_all
    from kvlab.kernels.gpu.tuning import measured_path

    q_heads, kv_heads, head_dim = (int(values[name][0]) for name in ("q_heads", "kv_heads", "head_dim"))
    keys = keys_of(values["dtype"], head_dim, [int(size) for size in values["block_sizes"]], q_heads // kv_heads)
    shape, found = Shape(int(values["batch"][0]), int(values["length"][0]), kv_heads), {}
    with Bar("kernels", len(keys)) as bar:
        for key, tuned in tune_all(keys, shape):
            found[key] = tuned
            bar.to(len(found), len(keys))
    text = markdown(found, measured_path())
    if args.out:
        output.write(args.out, text)
    print(json.dumps([row(*item) for item in found.items()]) if args.json else text)
    return 0


def row(key: Key, tuned: Tuned) -> dict[str, Any]:
    """A key, what was chosen for it, and how long each candidate took."""
    took = [{**config._asdict(), "seconds": seconds} for config, seconds in tuned.seconds.items()]
    failed = [{**config._asdict(), "reason": reason} for config, reason in tuned.failed.items()]
    return {**key.record(), "chosen": tuned.config._asdict(), "took": took, "failed": failed}


def markdown(found: dict[Key, Tuned], path: Path) -> str:
    """The table, and where the choices are kept."""
    table = grid(HEAD, [_cells(key, tuned) for key, tuned in found.items()], LEFT)
    return f"{table}\nkept in {path}, for this GPU; delete the file to go back to what is committed.\n"


def _cells(key: Key, tuned: Tuned) -> list[str]:
    from kvlab.kernels.gpu.tuning import committed

    place = "rows" if key.block_size is None else f"blocks of {key.block_size}"
    chosen = ", ".join(f"{name} {value}" for name, value in tuned.config._asdict().items())
    times = [tuned.seconds.get(config) for config in (tuned.config, committed(key).config)]
    head = [key.kind, key.record()["dtype"], str(key.head_dim), str(key.groups), place]
    return [
        *head,
        chosen,
        *("-" if x is None else f"{x * 1e6:,.1f}" for x in times),
        str(len(tuned.seconds)),
        str(len(tuned.failed)),
    ]

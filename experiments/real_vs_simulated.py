"""Is a simulated run on this machine's own constants as fast as the real one? Writes real_vs_simulated.md.

    kvlab bench calibrate engine.threads=1 out=cpu --out conf      # on its own workload: batches of equal prompts
    python experiments/real_vs_simulated.py

Real and simulated runs take turns; the simulated ones have the calibrated gpu=cpu, vmm=cpu and cost=cpu. Nothing here
was looked at when the constants were fitted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from script import told, whole_number

from kvlab.harness import provenance
from kvlab.harness.table import grid

HERE = Path(__file__).parent
WORK = [
    "model=smollm2", "dtype=float32", "engine.threads=1", "max_len=704", "pool_bytes=129761280", "tracking=none",
    "workload=lognormal", "workload.num_requests=24", "workload.scale=0.34", "workload.cap=704",
]  # fmt: skip
SIMULATED = ["executor=simulated", "gpu=cpu", "vmm=cpu", "cost=cpu"]
STRATEGIES = ["paged", "contiguous", "vattention"]
LIMIT = 0.10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=whole_number, default=5)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    words = [*WORK, f"seed={args.seed}"]
    real: dict[str, list[dict[str, Any]]] = {name: [] for name in STRATEGIES}
    for turn in range(args.repeats):
        for name in STRATEGIES:
            real[name].append(run([*words, f"strategy={name}"]))
            last = real[name][-1]
            print(
                f"{turn} {name}: {last['tokens_per_s']:.1f} tokens/s, others {last['others_cpu_share']:.1%}", flush=True
            )
    simulated = {name: run([*words, *SIMULATED, f"strategy={name}"]) for name in STRATEGIES}
    text = markdown(args, words, real, simulated)
    (HERE / "real_vs_simulated.md").write_text(text)
    print(text)


def run(words: list[str]) -> dict[str, Any]:
    """The result of one run in a directory that is thrown away."""
    with TemporaryDirectory() as folder:
        kvlab = Path(sys.executable).with_name("kvlab")
        command = [str(kvlab), "run", "--json", *words, f"hydra.run.dir={folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip())
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def markdown(
    args: argparse.Namespace, words: list[str], real: dict[str, list[dict[str, Any]]], simulated: dict[str, Any]
) -> str:
    head = ["strategy", "real, tokens/s", "simulated", "deviation", "within 10 %", "launches", "preemptions"]
    body = [row(name, real[name], simulated[name]) for name in STRATEGIES]
    shares = [result["others_cpu_share"] for results in real.values() for result in results]
    machine, versions = provenance.machine(), provenance.versions()
    return f"""\
# Real against simulated

SmolLM2-135M in float32 on one thread, real, and simulated with constants that `kvlab bench calibrate` measured on this
machine with a workload of its own. Tokens/s: median [least-most] of {args.repeats} real runs.

{grid(head, body, left={"strategy"})}
`{" ".join(words)}`; simulated with `{" ".join(SIMULATED)}`. Launches and preemptions: real / simulated. Others used
{min(shares):.1%} to {max(shares):.1%} of the CPU during the real runs. {machine["cpu"]}, {machine["cores"]} cores; \
commit {(versions["commit"] or "unknown")[:10]}; \
`python experiments/real_vs_simulated.py --repeats {args.repeats} --seed {args.seed}`.
"""


def row(name: str, real: list[dict[str, Any]], simulated: dict[str, Any]) -> list[str]:
    rates = [result["tokens_per_s"] for result in real]
    middle, rate = median(rates), simulated["tokens_per_s"]
    deviation = rate / middle - 1
    counts = (f"{real[0][key]} / {simulated[key]}" for key in ("num_steps", "num_preemptions"))
    spread = f"{middle:.1f} [{min(rates):.1f}-{max(rates):.1f}]"
    return [name, spread, f"{rate:.1f}", f"{deviation:+.1%}", "yes" if abs(deviation) <= LIMIT else "no", *counts]


if __name__ == "__main__":
    told(main)

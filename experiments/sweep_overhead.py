"""What a sweep of 200 simulated runs costs beside the runs themselves: starting, composing, writing, tables.

`python experiments/sweep_overhead.py --out experiments/sweep_overhead` does it twice, without and with its report.
overhead = (wall time of the sweep x workers - time of all runs) / runs
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from script import told, whole_number

from kvlab.harness import output, provenance
from kvlab.harness.table import grid
from kvlab.record.others import OthersShare, others_words

GRID = (
    "executor=simulated", "model=llama_3_8b", "gpu=h100", "dtype=bfloat16", "workload=azure_conv",
    "workload.num_requests=200", "workload.rate=8", "strategy=paged", "block_size=8,16,32,64", "seed=range(0,50)",
)  # fmt: skip
RUNS = 200
HEAD = ("report", "wall, s", "workers", "runs, s", "overhead a run, s", "others used of the CPU")


def measure(report: bool, workers: int) -> dict[str, Any]:
    """One sweep in a new directory."""
    options = ["--jobs", str(workers), *([] if report else ["--no-report"])]
    others, began = OthersShare(), time.perf_counter()
    with TemporaryDirectory() as directory:
        where = f"hydra.sweep.dir={directory}/sweep"
        command = [sys.executable, "-m", "kvlab.harness.cli", "sweep", *GRID, "tracking=none", where, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        results = [json.loads(path.read_text()) for path in Path(directory, "sweep").glob("*/result.json")]
    assert len(results) == RUNS
    inside = sum(result["wall_s"] for result in results)
    overhead = (wall * workers - inside) / RUNS
    share = others.share()
    return {
        "report": report,
        "wall_s": wall,
        "workers": workers,
        "runs_s": inside,
        "overhead_s": overhead,
        "others": share,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            "with" if row["report"] else "without",
            f"{row['wall_s']:.1f}",
            str(row["workers"]),
            f"{row['runs_s']:.1f}",
            f"{row['overhead_s']:.3f}",
            others_words(row["others"]),
        ]
        for row in rows
    ]
    facts = provenance.brief()
    return f"""\
# What a sweep costs beside its runs

{RUNS} simulated runs: `kvlab sweep {" ".join(GRID)}`.
Overhead: (wall time of the sweep x workers - time of all runs) / runs. It holds the
start of Python, composing and checking {RUNS} configurations, their files, and where it says so the
tables and figures at the end.

{grid(HEAD, cells, left={"report"})}
{facts["cpu"]}, {facts["cores"]} cores; Python {facts["python"]}, commit {facts["commit"]};
`python experiments/sweep_overhead.py --workers {rows[0]["workers"]} --out experiments/sweep_overhead`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=whole_number, default=2)
    parser.add_argument("--out", type=Path, help="where to write the table, without its suffix")
    args = parser.parse_args()
    out = args.out and args.out.with_suffix(".md")
    output.check(out)
    text = markdown([measure(report, args.workers) for report in (False, True)])
    print(text)
    if out:
        output.write(out, text)


if __name__ == "__main__":
    told(main)

"""How many requests a second the simulator serves, and in how much memory: one run in a process of its own.

`python -m kvlab.bench.simulator FOLDER` runs the simulated configuration in FOLDER/config.json, everything recorded and
written there as in any run, and prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from kvlab import resident, simulate
from kvlab.errors import UsageError
from kvlab.parent import end_with_parent
from kvlab.record.others import OthersShare

WARM_UP = 256  # requests


def measure(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds from the plan to the written files, on one core, and the most memory that the process ever had."""
    _warm_up(config, folder)
    planned = simulate.plan(config)
    if reason := simulate.refusal(planned):
        raise UsageError(reason)
    others, wall, cpu = OthersShare(), perf_counter(), process_time()
    result = simulate.serve(config, planned, folder, None)
    cpu_s, wall_s, share = process_time() - cpu, perf_counter() - wall, others.share()
    if result["num_finished"] != (asked := config["workload"]["num_requests"]):
        raise UsageError(
            f"{result['num_finished']:,} of {asked:,} requests were served, and the others take no "
            "time; raise max_len or pool_bytes, or ask for shorter ones"
        )
    return {
        "requests": result["num_finished"],
        "steps": result["num_steps"],
        "output_tokens": result["num_output_tokens"],
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "requests_per_cpu_s": result["num_finished"] / cpu_s,
        "peak_bytes": resident.peak_bytes(),
        "others_cpu_share": share,
    }


def _warm_up(config: dict[str, Any], folder: Path) -> None:
    """A short run first: what happens once in a process would count as the requests' where they are few."""
    short = {**config, "workload": {**config["workload"], "num_requests": WARM_UP}}
    planned = simulate.plan(short)
    if not simulate.refusal(planned):
        with TemporaryDirectory(dir=folder) as own:  # as ever, the run itself writes new files
            simulate.serve(short, planned, Path(own), None)


def main(folder: Path) -> None:
    """Prints what was measured, or what is wrong with the configuration."""
    end_with_parent()
    try:
        found = measure(json.loads((folder / "config.json").read_text()), folder)
    except UsageError as error:
        found = {"wrong": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Stands in for a run's process: the seed says what becomes of it. Not a test; launched by the tests."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kvlab.errors import UsageError
from kvlab.harness import job

REFUSED, WRONG, FAILS, KILLED, HANGS, GREEDY, NO_SPACE = 91, 92, 93, 94, 95, 96, 97


def execute(config: dict[str, Any], directory: Path, report: Any, progress: Any) -> dict[str, Any]:
    with (directory.parent / "log.txt").open("a") as log:
        print("start", directory.name, time.monotonic(), file=log)
    report("pool 1,024 blocks x 16 = 16,384 tokens")
    print("a library prints this")
    progress(1, 2)
    seed = config["seed"]
    if seed == WRONG:
        raise UsageError("workload.path=/nowhere: no such file")
    if seed == FAILS:
        raise RuntimeError("two\nlines")
    if seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == HANGS:
        time.sleep(60)
    if seed == GREEDY:
        block = b"x" * 2**29
        time.sleep(60)
        print(len(block))
    if seed == NO_SPACE:
        raise OSError(errno.ENOSPC, "No space left on device")
    if not config["timing"]:
        wait_for_company(directory.parent / "log.txt")
    with (directory.parent / "log.txt").open("a") as log:
        print("stop", directory.name, time.monotonic(), file=log)
    if seed == REFUSED:
        return {"status": "refused", "strategy": config["strategy"]["name"], "reason": "no request fits"}
    lines = ["t_s,held", *(f"{step / 10},{step * 4096}" for step in range(1203))]
    (directory / "steps.csv").write_text("\n".join(lines) + "\n")
    threads = os.environ.get("OMP_NUM_THREADS")
    return {
        "status": "ok",
        "reason": "",
        "strategy": config["strategy"]["name"],
        "tokens_per_s": 123.5,
        "waste": {"internal": 0.25, "external": float("nan")},
        "threads": threads,
        "process": os.getpid(),
    }


def wait_for_company(log: Path) -> None:
    """Until another run is under way or was: proof that two are at once."""
    stop = time.monotonic() + 10
    while log.read_text().count("start") < 2 and time.monotonic() < stop:
        time.sleep(0.01)


if __name__ == "__main__":
    job._engine = lambda: execute
    job._import_ahead = lambda: None
    sys.exit(job.main(sys.argv[1:]))

"""Runs the stages one after another, each a process of its own with a time limit, and keeps what each has said so far.

A stage that fails, hangs or kills the device says so in its row, and the next one runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from table import markdown

ROOT = Path(__file__).resolve().parents[2]
TOTAL_S = 470
PATIENCE = 4  # of a rehearsal, whose machine may be busy; it has no figures to hurry for
# Stage: (seconds at most, module, function). The last one has whatever the others leave of TOTAL_S.
STAGES = {
    "environment": (20, "stage_tests", "environment"),
    "device tests": (70, "stage_tests", "device_tests"),
    "bandwidths": (50, "stage_bandwidths", "run"),
    "driver calls": (20, "stage_driver", "run"),
    "lives": (30, "stage_lives", "run"),
    "growth": (45, "stage_serving", "growth"),
    "end to end": (125, "stage_serving", "end_to_end"),
    "page groups": (40, "stage_serving", "page_groups"),
    "kernel tests": (TOTAL_S, "stage_tests", "kernel_tests"),
}


class Report:
    """The rows of a stage, on disk after each. `ends`: when the stage is killed, by time.monotonic()."""

    def __init__(self, path: Path, rehearsal: bool, limit: float) -> None:
        self.path, self.rehearsal, self.rows = path, rehearsal, []
        self.ends = time.monotonic() + limit

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        write(self.path, json.dumps(self.rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; none: all")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on a CPU: shows that the stages run, no more")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu_check")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if wrong := [name for name in args.stages if name not in STAGES]:
        parser.error(f"no stage {wrong[0]!r}; allowed is {', '.join(STAGES)}")
    if args.inside:
        return inside(args.inside, args.out, args.rehearse, args.limit)
    return run_all(args.stages or list(STAGES), args.out, args.rehearse)


def run_all(names: list[str], out: Path, rehearsal: bool) -> int:
    out.mkdir(parents=True, exist_ok=True)
    began, done, patience = time.monotonic(), [], PATIENCE if rehearsal else 1
    for name in names:
        limit = min(patience * STAGES[name][0], patience * TOTAL_S - (time.monotonic() - began))
        done.append(run_one(name, limit, out, rehearsal))
        print(f"{name}: {done[-1]['status']}, {done[-1]['seconds']:.0f} s {done[-1]['reason']}".rstrip(), flush=True)
        whole = {"rehearsal": rehearsal, "seconds": round(time.monotonic() - began, 1), "stages": done}
        write(out / "gpu_check.json", json.dumps(whole, indent=1) + "\n")
        write(out / "gpu_check.md", markdown(whole))
    print((out / "gpu_check.md").read_text())
    return int(any(stage["status"] != "ok" for stage in done))


def run_one(name: str, limit: float, out: Path, rehearsal: bool) -> dict[str, Any]:
    rows, log = out / f"{name.replace(' ', '_')}.json", out / f"{name.replace(' ', '_')}.log"
    rows.unlink(missing_ok=True)
    began = time.monotonic()
    status, reason = "left out", "no time is left"
    if limit > 5:
        status, reason = in_process(name, limit, out, log, rehearsal)
    return {
        "stage": name,
        "status": status,
        "reason": reason,
        "seconds": round(time.monotonic() - began, 1),
        "rows": json.loads(rows.read_text()) if rows.exists() else [],
    }


def in_process(name: str, limit: float, out: Path, log: Path, rehearsal: bool) -> tuple[str, str]:
    command = [sys.executable, __file__, "--inside", name, "--out", str(out), "--limit", str(limit)]
    command += ["--rehearse"] * rehearsal
    environment = os.environ | ({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if rehearsal else {})
    with log.open("w") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=ROOT, start_new_session=True)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            return "timed out", f"after {limit:.0f} s; what it had measured until then is kept"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if code == 0:
        return "ok", ""
    lines = log.read_text(errors="replace").strip().splitlines()
    return "failed", " ".join((lines[-1] if lines else f"status {code}").split())[:300]


def inside(name: str, out: Path, rehearsal: bool, limit: float) -> int:
    _, module, function = STAGES[name]
    report = Report(out / f"{name.replace(' ', '_')}.json", rehearsal, limit)
    try:
        getattr(importlib.import_module(module), function)(report)
    except BaseException as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return 1
    return 0


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    fresh = path.with_suffix(".part")
    fresh.write_text(text)
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())

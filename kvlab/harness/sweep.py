"""`kvlab sweep`: every combination of the values given, each run in a process and a directory of its own.

Runs whose timings count go one at a time; others (timing=false, and whatever is simulated) fill the cores. A run
that fails leaves its error and the sweep goes on. What is finished is never repeated, so a sweep can be stopped and
taken up again.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.errors import UsageError
from kvlab.harness import validate
from kvlab.harness.limits import Limits
from kvlab.harness.manifest import MANIFEST, Manifest, locked
from kvlab.harness.provenance import available_bytes, cores
from kvlab.harness.rundir import fingerprint

if TYPE_CHECKING:
    from kvlab.harness.plan import Plan, Planned
    from kvlab.harness.tracking import Tracker

BESIDE_THE_POOL = 2**30  # bytes: weights with Python and torch, at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("overrides", metavar="NAME=VALUE,VALUE", nargs="*", help="overrides, with one or several values each")
    add("--resume", metavar="DIR", help="take up the sweep in DIR; its own overrides hold unless some are given")
    add("--jobs", metavar="N", type=int, help="runs at once that need no quiet machine (default: as many as fit)")
    add("--time-limit", metavar="TIME", help="end a run that takes longer: 90s, 30m, 2h")
    add("--memory-limit", metavar="SIZE", help="end a run whose process has more resident memory: 4GiB")
    add("--dry-run", action="store_true", help="list the runs, in order, and stop")
    add("--no-report", action="store_true", help="make no tables and figures at the end")
    add("--json", action="store_true", help=f"print what {MANIFEST} holds instead of tables")


def run(args: argparse.Namespace) -> int:
    """0 if every run is finished, 1 if some failed or could not be logged, 2 if all were refused."""
    from kvlab.harness.plan import make_plan
    from kvlab.harness.tracking import tracker_for

    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: allowed is a whole number, 1 or more")
    limits = Limits.of(args.time_limit, args.memory_limit)
    overrides, typed_in = _overrides(args)
    with contextlib.chdir(typed_in):  # names of files in them are relative to it
        plan = make_plan(_tracked(overrides))
    print("\n".join([*plan.left_out, plan.line]), file=sys.stderr)
    tracker = tracker_for(plan.tracking, plan.directory, group=plan.directory.name)
    # What is wrong with a run is wrong with it at any seed.
    validate.rehearse({fingerprint({**run.config, "seed": None}): run.config for run in plan.runs}.values())
    if args.dry_run:
        print("\n".join(planned.label for planned in plan.runs))
        return 0
    with locked(plan.directory):
        return _sweep(Manifest(plan.directory, plan.runs, overrides, typed_in), plan, tracker, limits, args)


def _overrides(args: argparse.Namespace) -> tuple[list[str], Path]:
    """What was typed, and where; --resume means the directory's own overrides, and that directory."""
    given, typed_in = list(args.overrides), Path.cwd()
    if args.resume:
        if not given:
            given, typed_in = Manifest.started_with(Path(args.resume))
        given = [line for line in given if not line.startswith("hydra.sweep.dir=")]
        given.append(f"hydra.sweep.dir={quoted(args.resume)}")
    return given, typed_in if typed_in.is_dir() else Path.cwd()


def _tracked(overrides: list[str]) -> list[str]:
    """W&B is on unless told otherwise."""
    told = any(re.match(r"[+~]*tracking(=|$)", line) for line in overrides)
    return overrides if told else [*overrides, "tracking=wandb"]


def quoted(text: str) -> str:
    """A value that Hydra's grammar takes as it is."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _sweep(manifest: Manifest, plan: Plan, tracker: Tracker, limits: Limits, args: argparse.Namespace) -> int:
    if finished := manifest.finished():
        print(f"{len(finished)} finished earlier and not repeated", file=sys.stderr)
    print(tracker.line, file=sys.stderr)
    for directory in finished:
        tracker.log(directory)
    try:
        _launch(manifest, tracker, limits, args.jobs)
    except KeyboardInterrupt:
        left = f"{manifest.count('ok', 'refused')} of {len(plan.runs)} runs are finished and stay"
        again = f"kvlab sweep --resume {shlex.quote(str(plan.directory))}"
        raise KeyboardInterrupt(f"interrupted: {left}; take it up with: {again}") from None
    untracked = tracker.conclude()
    if args.json:
        print((plan.directory / MANIFEST).read_text(), end="")
    unreported = 0 if args.no_report else _report(plan.directory, aloud=not args.json)
    return max(_conclude(manifest), untracked, unreported)


def _launch(manifest: Manifest, tracker: Tracker, limits: Limits, jobs: int | None) -> None:
    from kvlab.harness.follow import Follow
    from kvlab.harness.launch import run_all
    from kvlab.harness.progress import Bar

    with Bar("runs", len(manifest.runs)) as bar:
        follow = Follow(manifest, bar, tracker)
        for runs, alone, warm in _kinds(manifest.waiting()):
            width = 1 if alone else jobs or at_once(runs)
            run_all(map(manifest.prepare, runs), width, follow.event, follow.end, limits, warm)


def _kinds(runs: list[Planned]) -> list[tuple[list[Planned], bool, bool]]:
    """(runs, whether one at a time, whether in warm processes): no simulated time depends on who else is running."""
    simulated = [run for run in runs if _simulated(run)]
    timed = [run for run in runs if not _simulated(run) and run.config["timing"]]
    loose = [run for run in runs if not _simulated(run) and not run.config["timing"]]
    return [(timed, True, False), (loose, False, False), (simulated, False, True)]


def _simulated(run: Planned) -> bool:
    return run.config.get("executor") == "simulated"


def at_once(runs: list[Planned]) -> int:
    """As many as there are cores, and as fit into memory."""
    if not runs:
        return 1
    memory = available_bytes()
    fitting = len(runs) if memory is None else memory // (max(map(_pool, runs)) + BESIDE_THE_POOL)
    return max(1, min(cores(), len(runs), fitting))


def _pool(run: Planned) -> int:
    if _simulated(run):
        return 0  # a pool that is only counted
    from kvlab.engine.capacity import pool_bytes
    from kvlab.model.load import shape_of

    given = run.config["pool_bytes"]  # without it, the model's sizes decide
    return int(given or pool_bytes(run.config, shape_of(run.config["model"])))


def _report(directory: Path, aloud: bool) -> int:
    """Tables and figures; 1 if they could not be made, which does not touch the results."""
    from kvlab.harness.report import write_report

    try:
        path = write_report(directory)
    except Exception as error:
        again = f"kvlab report {shlex.quote(str(directory))}"
        print(f"no report: {type(error).__name__}: {error} (results are whole; {again})", file=sys.stderr)
        return 1
    if aloud:
        print(_without_pictures(path.read_text()))
    print(f"report: {path}", file=sys.stderr)
    return 0


def _without_pictures(text: str) -> str:
    """What a terminal can show of it."""
    return "\n\n".join(part for part in text.split("\n\n") if not part.startswith("!["))


def _conclude(manifest: Manifest) -> int:
    ok, refused, failed = (manifest.count(status) for status in ("ok", "refused", "failed"))
    print(f"{ok} ok, {refused} refused, {failed} failed: {manifest.directory}", file=sys.stderr)
    for line in manifest.failures():
        print(line, file=sys.stderr)
    if failed:
        return 1
    return 2 if refused and not ok else 0

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
from kvlab.harness import rundir, validate
from kvlab.harness.limits import Limits
from kvlab.harness.manifest import MANIFEST, Again, Manifest, locked
from kvlab.harness.output import NO_SPACE
from kvlab.harness.rundir import fingerprint

if TYPE_CHECKING:
    from kvlab.harness.plan import Plan
    from kvlab.harness.tracking import Tracker

BESIDE_THE_RUNS = {"tracking": "tracking.", "hydra/launcher": "hydra.launcher."}  # a group, and how its values begin
HOW_TO_RUN = "tracking, tracking.NAME, hydra/launcher or hydra.launcher.NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("overrides", metavar="NAME=VALUE,VALUE", nargs="*", help="overrides, with one or several values each")
    add("--resume", metavar="DIR", help="take up the sweep in DIR, by its own overrides; tracking=none may be given")
    add("--jobs", metavar="N", type=int, help="runs at once that need no quiet machine (default: as many as fit)")
    add("--runs-per-job", metavar="N", type=int, default=1, help="with hydra/launcher: runs that one job does in turn")
    add("--time-limit", metavar="TIME", help="end a run that takes longer: 90s, 30m, 2h")
    add("--memory-limit", metavar="SIZE", help="end a run whose process has more resident memory: 4GiB")
    add("--retry-failed", action="store_true", help="do again what failed earlier")
    add("--rerun", action="store_true", help=f"do everything again; earlier results are kept in {rundir.EARLIER}")
    add("--dry-run", action="store_true", help="list the runs, in order, with the time and memory to expect, and stop")
    add("--no-report", action="store_true", help="make no tables and figures at the end")
    add("--json", action="store_true", help=f"print what {MANIFEST} holds instead of tables")


def run(args: argparse.Namespace) -> int:
    """0 if every run is finished, 1 if some failed or could not be logged, 2 if all were refused."""
    from kvlab.harness.estimate import dry_run
    from kvlab.harness.plan import make_plan
    from kvlab.harness.tracking import tracker_for

    for option, value in (("--jobs", args.jobs), ("--runs-per-job", args.runs_per_job)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: allowed is a whole number, 1 or more")
    limits = Limits.of(args.time_limit, args.memory_limit)
    overrides, typed_in = _overrides(args)
    with contextlib.chdir(typed_in):  # names of files in them are relative to it
        plan = make_plan(_tracked(overrides))
    print("\n".join([*plan.left_out, plan.line]), file=sys.stderr)
    tracker = tracker_for(plan.tracking, plan.directory, group=plan.directory.name)
    # What is wrong with a run is wrong with it at any seed.
    validate.rehearse({fingerprint({**run.config, "seed": None}): run.config for run in plan.runs}.values())
    if args.dry_run:
        print("\n".join(dry_run(plan.runs, plan.directory)))
        return 0
    with locked(plan.directory):
        again = Again(finished=args.rerun, failed=args.rerun or args.retry_failed)
        return _sweep(Manifest(plan.directory, plan.runs, overrides, typed_in, again), plan, tracker, limits, args)


def _overrides(args: argparse.Namespace) -> tuple[list[str], Path]:
    """What was typed, and where; --resume means the directory's own overrides, and that directory."""
    if not args.resume:
        return list(args.overrides), Path.cwd()
    own, typed_in = Manifest.started_with(Path(args.resume))
    return _resumed(own, args.overrides, args.resume), typed_in if typed_in.is_dir() else Path.cwd()


def _resumed(own: list[str], given: list[str], directory: str) -> list[str]:
    """A sweep's own overrides, and those given now in place of theirs. UsageError: one would change the runs."""
    from kvlab.harness.overrides import override_name

    names = [override_name(line) for line in given]
    for name, line in zip(names, given, strict=True):
        if name not in BESIDE_THE_RUNS and not name.startswith(tuple(BESIDE_THE_RUNS.values())):
            raise UsageError(
                f"{line}: a sweep that is taken up has its own values; allowed with --resume is {HOW_TO_RUN} "
                f"(other runs in its directory: kvlab sweep hydra.sweep.dir={shlex.quote(directory)} NAME=VALUE ...)"
            )
    replaced = tuple(prefix for group, prefix in BESIDE_THE_RUNS.items() if group in names)
    kept = [line for line in own if (name := override_name(line)) not in names and not name.startswith(replaced)]
    return [*kept, *given, f"hydra.sweep.dir={quoted(directory)}"]


def _tracked(overrides: list[str]) -> list[str]:
    """W&B is on unless told otherwise."""
    told = any(re.match(r"[+~]*tracking(=|$)", line) for line in overrides)
    return overrides if told else [*overrides, "tracking=wandb"]


def quoted(text: str) -> str:
    """A value that Hydra's grammar takes as it is."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _sweep(manifest: Manifest, plan: Plan, tracker: Tracker, limits: Limits, args: argparse.Namespace) -> int:
    for line in _earlier(manifest):
        print(line, file=sys.stderr)
    print(tracker.line, file=sys.stderr)
    for directory in manifest.finished():
        tracker.log(directory)
    try:
        _launch(manifest, plan, tracker, limits, args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted: {_take_up(manifest)}") from None
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        print(f"kvlab: {rundir.DISK_FULL}: {_take_up(manifest, ' --retry-failed')}", file=sys.stderr)
        return 1
    untracked = tracker.conclude()
    if args.json:
        print((plan.directory / MANIFEST).read_text(), end="")
    unreported = 0 if args.no_report else _report(plan.directory, aloud=not args.json)
    return max(_conclude(manifest), untracked, unreported)


def _earlier(manifest: Manifest) -> list[str]:
    """What a sweep finds done."""
    finished, failed = manifest.count(*rundir.FINISHED), manifest.count("failed")
    lines = [f"{finished} finished earlier and not repeated"] if finished else []
    if failed:
        lines.append(f"{failed} failed earlier and not repeated (--retry-failed does)")
    if manifest.stale:
        lines.append(
            f"{manifest.stale} ended earlier with other code: done again, finished ones kept in {rundir.EARLIER}"
        )
    return lines


def _take_up(manifest: Manifest, option: str = "") -> str:
    left = f"{manifest.count(*rundir.FINISHED)} of {len(manifest.runs)} runs are finished and stay"
    return f"{left}; take it up with: kvlab sweep --resume {shlex.quote(str(manifest.directory))}{option}"


def _launch(manifest: Manifest, plan: Plan, tracker: Tracker, limits: Limits, args: argparse.Namespace) -> None:
    from kvlab.harness import elsewhere, here
    from kvlab.harness.follow import Follow
    from kvlab.harness.progress import Bar

    with Bar("runs", len(manifest.runs)) as bar:
        follow = Follow(manifest, bar, tracker)
        if plan.launcher:
            elsewhere.carry_out(manifest, follow, limits, plan.launcher, args.jobs, args.runs_per_job)
        else:
            here.carry_out(manifest, follow, limits, args.jobs)


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

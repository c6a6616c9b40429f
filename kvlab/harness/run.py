"""`kvlab run`: one run in a process of its own, its result in a directory of its own."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.errors import UsageError
from kvlab.harness import identity, rundir

if TYPE_CHECKING:
    from kvlab.harness.child import Child
    from kvlab.harness.composed import Composed
    from kvlab.harness.tracking import Tracker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", metavar="NAME=VALUE", nargs="*", help="overrides of the configuration")
    parser.add_argument("--json", action="store_true", help="print what result.json holds instead of a table")


def run(args: argparse.Namespace) -> int:
    """0 ok, 2 refused or wrong values, 1 failed."""
    from kvlab.harness.launch import begun  # the rest is imported while that process does the same

    with begun(args.overrides) as child:
        return _run(args, child)


def _run(args: argparse.Namespace, child: Child | None) -> int:
    from kvlab.harness.compose import compose
    from kvlab.harness.summary import summary
    from kvlab.harness.tracking import tracker_for

    composed = compose(args.overrides)
    if composed.launcher:
        raise UsageError(
            f"hydra/launcher={composed.launcher['launcher']}: allowed in `kvlab sweep`; a run is done here"
        )
    directory = composed.run_dir
    tracker = tracker_for(composed.tracking, directory)
    for line in notices(composed, args.overrides):
        print(line, file=sys.stderr)
    code = _once(directory, composed, args.overrides, child)
    result = rundir.read_result(directory)
    assert result
    if args.json:
        print(json.dumps(result, indent=1))
    elif result["status"] == "ok":
        print(f"{summary(result)}\nresult: {directory / rundir.RESULT}")
    if result["status"] not in rundir.FINISHED:
        return _failed(directory, result["reason"], wrong=code == rundir.EXITS["refused"])
    if result["status"] == "refused":
        print(f"kvlab: refused: {result.get('reason')}", file=sys.stderr)
    return _track(tracker, directory) or rundir.EXITS[result["status"]]


def _once(directory: Path, composed: Composed, overrides: Sequence[str], child: Child | None) -> int | None:
    """Run it; how its process ended. None: it has finished earlier, and is not repeated."""
    if _repeated(directory, composed.config):
        other = "" if _by_this_code(directory, composed.config) else ", by other code (another directory runs it again)"
        print(f"finished earlier and not repeated{other}: {directory}", file=sys.stderr)
        return None
    from kvlab.harness import validate

    validate.rehearse([composed.config])
    with rundir.claimed(directory):
        rundir.prepare(directory, composed.config, overrides)
        return _launch(directory, child)


def notices(composed: Composed, overrides: Sequence[str]) -> list[str]:
    """What was asked for and has no effect."""
    lines = [
        f"{composed.strategy} has no {line.partition('=')[0]}: {line} is ignored"
        for line in overrides
        if line.partition("=")[0] in composed.lacking
    ]
    if composed.sweep_params:
        names = ", ".join(composed.sweep_params)
        lines.append(f"the experiment's values of {names} are for `kvlab sweep`; this is one run of its base")
    return lines


def _repeated(directory: Path, config: dict[str, Any]) -> bool:
    """Whether just this run is in the directory, finished."""
    return rundir.read_json(directory / rundir.CONFIG) == rundir.plain(config) and rundir.is_finished(directory)


def _by_this_code(directory: Path, config: dict[str, Any]) -> bool:
    result = rundir.read_result(directory)
    return result is not None and result.get("code") == identity.code(config)


def _launch(directory: Path, child: Child | None) -> int:
    """The exit status of the run's process."""
    from kvlab.harness.launch import run_one
    from kvlab.harness.progress import Bar

    with Bar("requests") as bar:

        def listen(_: Path, event: dict[str, Any]) -> None:
            if "line" in event:
                bar.line(event["line"])
            if "progress" in event:
                bar.to(*event["progress"])

        try:
            return run_one(directory, listen, child)
        except KeyboardInterrupt:
            rundir.clear(directory)
            again = "the same command with hydra.run.dir=" + str(directory)
            raise KeyboardInterrupt(f"interrupted, no result in {directory}; {again} starts it again") from None


def _failed(directory: Path, reason: str, wrong: bool) -> int:
    """`wrong`: a value was, which one line says whole."""
    words = reason if wrong else f"failed: {reason} (see {directory / rundir.ERROR})"
    print(f"kvlab: {words}", file=sys.stderr)
    return rundir.EXITS["refused" if wrong else "failed"]


def _track(tracker: Tracker, directory: Path) -> int:
    """1 if W&B was asked for and did not take the run."""
    if tracker.wanted:
        print(tracker.line, file=sys.stderr)
    tracker.log(directory)
    return tracker.conclude()

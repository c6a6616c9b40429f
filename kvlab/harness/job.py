"""One run in this process: `python -m kvlab.harness.job DIRECTORY` reads config.json and writes result.json.

Without a directory it stays warm: it reads one after the other from standard input, a JSON string a line. With --ahead
it does so once it has imported what a real run needs.
Speaks to its parent in lines of JSON on standard output: {"line": text}, {"progress": [done, total]} and, kept warm,
{"end": status}. A run that is told to stop leaves no result. Exits 0 if ok, 2 if refused, 1 if failed, 130 if stopped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from kvlab import resident
from kvlab.errors import UsageError
from kvlab.harness import identity, provenance, rundir, schema
from kvlab.harness.child import AHEAD
from kvlab.harness.output import NO_SPACE
from kvlab.parent import end_with_parent

Execute = Callable[[dict[str, Any], Path, Callable[[str], None], Callable[[int, int], None]], dict[str, Any]]
SECONDS_BETWEEN = 0.2  # progress lines


class Began(NamedTuple):
    """When a run did, by the calendar and in seconds of perf_counter."""

    at: datetime
    clock: float

    @classmethod
    def now(cls) -> Began:
        return cls(datetime.now(UTC), time.perf_counter())


def run_job(directory: Path, execute: Execute | None = None, began: Began | None = None) -> int:
    """Run what config.json says and write result.json; the exit status. began: None: now."""
    began = began or Began.now()
    try:
        resident.forget_peak()
        execute = execute or _engine()
        outcome = execute(rundir.read_json(directory / rundir.CONFIG), directory, _line, Progress())
        assert outcome["status"] in rundir.FINISHED, outcome["status"]
        rundir.write_result(directory, _complete(directory, outcome, began))
    except UsageError as error:
        rundir.fail(directory, str(error))
        return 2
    except MemoryError as error:
        rundir.fail(directory, f"out of memory: {_one_line(error)}", traceback.format_exc())
        return rundir.EXITS["failed"]
    except OSError as error:
        full = error.errno in NO_SPACE
        rundir.fail(directory, rundir.DISK_FULL if full else _one_line(error), traceback.format_exc())
        return rundir.EXITS["failed"]
    except Exception as error:
        rundir.fail(directory, _one_line(error), traceback.format_exc())
        return rundir.EXITS["failed"]
    return rundir.EXITS[outcome["status"]]


def run_jobs(lines: Iterable[str]) -> int:
    """Run after run, what each imports once; 0. Errors of each go to its own log."""
    execute = _engine()
    for line in lines:
        directory = Path(json.loads(line))
        log = os.open(directory / rundir.LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, sys.stderr.fileno())
        os.close(log)
        _emit({"end": run_job(directory, execute)})
    return 0


def run_ahead(lines: Iterable[str]) -> int:
    """As run_jobs, of real runs whose errors go where ours go, and whose imports begin before the first is named.

    That counts as the first one's time.
    """
    began: Began | None = Began.now()
    with suppress(Exception):  # the run meets it too, and says so
        _import_ahead()
    for line in lines:
        _emit({"end": run_job(Path(json.loads(line)), began=began)})
        began = None
    return 0


class Progress:
    """Passes on at most a few reports a second, and always the last."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN or done >= total:
            self.last = now
            _emit({"progress": [done, total]})


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print("usage: python -m kvlab.harness.job [DIRECTORY | --ahead]", file=sys.stderr)
        return 2
    end_with_parent(signal.SIGKILL)  # at once: the next sweep may be about to use the same directory
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments == [AHEAD]:
            return run_ahead(sys.stdin)
        return run_job(Path(arguments[0])) if arguments else run_jobs(sys.stdin)
    except KeyboardInterrupt:
        return 130
    except OSError:  # not even an error can be left; the parent, which tries the same, says so
        return rundir.EXITS["failed"]


def _import_ahead() -> None:
    _engine()  # first, and whole: two threads that import each other's modules may find them half made
    from kvlab.start import import_engine

    import_engine()


def _engine() -> Execute:
    from kvlab.run import execute

    return execute


def _complete(directory: Path, outcome: dict[str, Any], began: Began) -> dict[str, Any]:
    """The outcome with everything needed to read and to repeat it."""
    config = rundir.read_json(directory / rundir.CONFIG)
    return {
        "schema_version": schema.VERSION,
        "status": outcome["status"],
        "started": began.at.isoformat(timespec="seconds"),
        "wall_s": round(time.perf_counter() - began.clock, 3),
        "process_peak_bytes": resident.peak_bytes(),
        "overrides": rundir.read_json(directory / rundir.OVERRIDES) or [],
        **{key: config[key] for key in ("preset", "preset_overridden") if key in config},
        "config": config,
        "code": identity.code(config),
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        **outcome,
    }


def _line(text: str) -> None:
    _emit({"line": text})


def _emit(event: dict[str, Any]) -> None:
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:  # our parent is gone, perhaps before it could be made to take us with it
        raise KeyboardInterrupt from None


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

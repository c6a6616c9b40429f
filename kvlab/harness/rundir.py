"""A run's directory: config.json and overrides.json before it starts, result.json last and whole or not at all.

What a reader finds under a name was written to the disk before it got that name: neither a kill nor a power cut leaves
half of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvlab.errors import UsageError
from kvlab.harness import identity, schema
from kvlab.harness.output import writing

CONFIG, OVERRIDES, RESULT, ERROR, LOG = "config.json", "overrides.json", "result.json", "error.txt", "log.txt"
STEPS, REQUESTS, OUTPUTS, TRACKING = "steps.csv", "requests.csv", "outputs.jsonl", "tracking.json"
MEMORY_MAP = "memory_map.npz"
EARLIER = ".earlier"  # in a sweep: results that were replaced; tables leave it out
NOT_COMPARED = ("started", "wall_s", "process_peak_bytes", "machine", "versions")  # of a result: differ when repeated
EXITS = {"ok": 0, "refused": 2, "failed": 1}  # status of a run -> exit status of what ran it
FINISHED = ("ok", "refused")
DISK_FULL = "the disk is full"  # the reason of a run that failed for it


def fingerprint(config: Mapping[str, Any]) -> str:
    """Equal for two configurations that make the same run."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def write_json(path: Path, value: Any, sync: bool = True) -> None:
    """Write through a temporary file beside it, so that a reader finds the old content or the new.

    sync: wait until it is on the disk.
    """
    _write(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n", sync)


def plain(value: Any) -> Any:
    """The value in JSON's own types; what is not a finite number becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return plain(value.item()) if hasattr(value, "item") else str(value)


def read_json(path: Path) -> Any:
    """The file's content; None if it is not there or not whole."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_result(directory: Path) -> dict[str, Any] | None:
    """The result of a run, whatever its status; None while there is none."""
    result = read_json(directory / RESULT)
    return result if isinstance(result, dict) and "status" in result else None


def is_finished(directory: Path) -> bool:
    """Whether the run need not be repeated."""
    result = read_result(directory)
    return result is not None and result["status"] in FINISHED


@contextlib.contextmanager
def claimed(directory: Path, wait: bool = False) -> Iterator[None]:
    """One run in a directory at a time. Raises UsageError if there is another (wait: waits for its end), or it cannot
    be written; OSError: the disk is full.
    """
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    try:
        with unless_unsupported():
            _lock(directory, descriptor, wait)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unless_unsupported() -> Iterator[None]:
    """What a file system has no locks for is done without one."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL):
            raise


def _lock(directory: Path, descriptor: int, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise UsageError(f"{directory}: another run is under way there; choose another directory") from error


def is_blank(directory: Path) -> bool:
    """Whether it is empty, or its preparation was cut short."""
    return all(path.name == OVERRIDES or path.suffix == ".tmp" for path in directory.iterdir())


def prepare(directory: Path, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Make the directory ready for the run. UsageError: it holds something else; OSError: the disk is full.

    What an earlier try of the same run, or a run that failed, left behind is removed.
    """
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(directory, config)
        clear(directory)
        write_json(directory / OVERRIDES, list(overrides), sync=False)  # the result waits for them
        write_json(directory / CONFIG, config, sync=False)


def clear(directory: Path) -> None:
    """Remove the files of a run; a series that outlived its run would look like one of the next.

    The result goes first: without it nothing here counts as a run, should we be stopped halfway.
    """
    for half in directory.glob("*.tmp"):
        half.unlink(missing_ok=True)
    for name in (RESULT, ERROR, LOG, STEPS, REQUESTS, OUTPUTS, MEMORY_MAP, TRACKING, CONFIG, OVERRIDES):
        (directory / name).unlink(missing_ok=True)


def fail(directory: Path, reason: str, details: str = "") -> None:
    """Leave an error where the result would be, and nothing of the series: where the disk is full, that makes room."""
    for name in (STEPS, REQUESTS, OUTPUTS, MEMORY_MAP):
        (directory / name).unlink(missing_ok=True)
    _write(directory / ERROR, (details or reason).rstrip() + "\n")
    previous = {"schema_version": schema.VERSION, "status": "failed", "reason": reason}
    config, overrides = read_json(directory / CONFIG) or {}, read_json(directory / OVERRIDES) or []
    write_result(directory, {**previous, "overrides": overrides, "config": config, "code": identity.code(config)})


def log(directory: Path, line: str) -> None:
    """What a run says to people."""
    with (directory / LOG).open("a") as file:
        print(line, file=file)


def write_result(directory: Path, result: Mapping[str, Any]) -> None:
    """The result, which says that the run is over: whatever else the run left is on the disk before it."""
    for name in (CONFIG, OVERRIDES, STEPS, REQUESTS, OUTPUTS, MEMORY_MAP):
        if (directory / name).exists():
            _sync(directory / name)
    write_json(directory / RESULT, result)


def _write(path: Path, text: str, sync: bool = True) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            _sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)  # a disk that is full does not say for whom
        raise


def _sync(path: Path) -> None:
    """A file or a directory, as far as its file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a directory on a file system that syncs none
            raise
    finally:
        os.close(descriptor)


def _refuse_foreign(directory: Path, config: Mapping[str, Any]) -> None:
    if is_blank(directory):
        return
    there = read_json(directory / CONFIG)
    if not isinstance(there, dict) or not (directory / OVERRIDES).exists():
        raise UsageError(f"{directory}: not empty and not a run's directory; choose another one")
    mine, result = plain(config), read_result(directory)
    failed = result is not None and result["status"] not in FINISHED  # most often a wrong value, corrected now
    if there != mine and not failed:
        keys = sorted(key for key in {*there, *mine} if there.get(key) != mine.get(key))
        raise UsageError(f"{directory}: holds another run, which differs in {', '.join(keys)}; choose another one")

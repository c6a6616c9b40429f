"""Where results are to be written: tried before anything is measured, so that minutes are not lost to a wrong path."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from kvlab.errors import UsageError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def check(path: Path | None) -> None:
    """UsageError: no file can be written there. Leaves everything as it is."""
    if path is None:
        return
    with writing(path):
        target = path.resolve()
        if target.exists():
            target.open("ab").close()
        if _is_replaced(target):
            TemporaryFile(dir=target.parent).close()


def check_folder(path: Path) -> None:
    """UsageError: no files can be written below that folder, which need not be there yet."""
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    with writing(path):
        TemporaryFile(dir=above).close()


def write(path: Path, text: str) -> None:
    """At once: who is stopped in between leaves what was there before. UsageError: not there."""
    target = path.resolve()  # not the link to it
    with writing(path):
        if not _is_replaced(target):
            target.write_text(text)
            return
        with TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as scratch:
            fresh = Path(scratch) / target.name
            fresh.write_text(text)
            os.replace(fresh, target)


def _is_replaced(target: Path) -> bool:
    """A file, there or not; what is a terminal or a pipe is written to."""
    return target.is_file() or not target.exists()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says about writing `path`, as a UsageError; of a full disk an OSError: no path would be right."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise UsageError(f"{path}: cannot write there: {error.strerror}") from error

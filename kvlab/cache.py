"""The cache directory, and files that appear in it whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.errors import UsageError

CHUNK_BYTES = 16 << 20  # between two of which another thread, importing, may keep the interpreter for milliseconds


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/kvlab, or ~/.cache/kvlab; need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative values.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kvlab"


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A path to write to; what lies there when the block ends becomes `target`, after an error nothing does.

    Each caller writes in a scratch directory of its own, so two at once do not meet; the last one's file stays.
    UsageError: the directory cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as scratch:
            path = Path(scratch) / target.name
            yield path
            os.replace(path, target)
    except OSError as error:
        raise UsageError(
            f"cannot write {target} ({error.strerror or error}); XDG_CACHE_HOME=DIR puts the cache elsewhere"
        ) from error


def sha256(path: Path) -> str:
    """Hexadecimal checksum of the file. UsageError: it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
            return digest.hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error

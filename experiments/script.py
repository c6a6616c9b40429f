"""What scripts beside this one share: what goes wrong, or is stopped, ends as one line, as `kvlab` says it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable

from kvlab.errors import UsageError


def told(work: Callable[[], object]) -> None:
    """Does it, and ends the process: 0, 2 wrongly used, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being told to end is like Ctrl-C
    try:
        work()
    except UsageError as error:
        sys.exit(_line(str(error), 2))
    except KeyboardInterrupt:
        sys.exit(_line("interrupted", 130))
    sys.exit(0)


def whole_number(text: str) -> int:
    """Of an argument that counts: 1 or more."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text}: allowed is a whole number, 1 or more")
    return int(text)


def _line(text: str, status: int) -> int:
    print(text, file=sys.stderr)
    return status

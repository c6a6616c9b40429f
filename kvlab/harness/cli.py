"""The command `kvlab`: finds the verb, imports it alone, and turns what goes wrong into one line.

Nothing heavy is imported here. The verbs themselves are listed in kvlab.harness.verbs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import NoReturn

from kvlab.errors import UsageError
from kvlab.harness.verbs import OVERRIDES, VERBS, WITH_OVERRIDES, Verb, usage


class Parser(argparse.ArgumentParser):
    """Wrong arguments are an error of one line, like every other."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 ok, 1 failed, 2 refused or wrongly used, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        with _terminable():
            return _dispatch(arguments)
    except UsageError as error:
        return _say(f"kvlab: {error}", 2)
    except KeyboardInterrupt as stop:
        return _say(f"kvlab: {str(stop) or 'interrupted'}", 130)
    except BrokenPipeError:
        # The reader is gone (`| head`). What Python still wants to flush has to go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a disk that is full, a directory that is gone
        return _say(f"kvlab: {error.filename or 'cannot write'}: {error.strerror or error}", 1)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from kvlab import __version__

        print(f"kvlab {__version__}")
        return 0
    verb = next((verb for verb in VERBS if verb.name == arguments[0]), None)
    if verb is None:
        raise UsageError(f"{arguments[0]!r} is no verb; allowed is {', '.join(verb.name for verb in VERBS)}")
    return _run(verb, arguments[1:])


def _run(verb: Verb, arguments: list[str]) -> int:
    module = import_module(verb.module)
    epilog = "\n".join(("examples:", *(f"  {example}" for example in verb.examples)))
    if verb.name in WITH_OVERRIDES:
        from kvlab.harness.group_help import groups_text

        epilog = f"{OVERRIDES}\n\n{groups_text()}\n\n{epilog}"
    parser = Parser(
        prog=f"kvlab {verb.name}",
        description=f"{verb.help[0].upper()}{verb.help[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    try:
        args = parser.parse_intermixed_args(arguments)
    except SystemExit:  # --help
        return 0
    status = module.run(args)
    sys.stdout.flush()
    return int(status)


def _open_streams() -> None:
    """Where we were started with a closed output, what is printed goes nowhere, and not to the other one."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _say(line: str, status: int) -> int:
    print(line, file=sys.stderr)
    return status


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Being told to end is like Ctrl-C: children are ended too, and finished runs stay readable."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not the main thread: whoever called us decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())

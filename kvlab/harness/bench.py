"""`kvlab bench NAME`: what a part of kvlab costs on this machine; each NAME has a module of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvlab.errors import UsageError
from kvlab.harness import (
    bench_bookkeeping,
    bench_calibrate,
    bench_compiled,
    bench_engine,
    bench_kernels,
    bench_simulator,
    bench_tune,
    output,
)  # fmt: skip

SHAPED = {  # take NAME=VALUE
    "kernels": bench_kernels.run,
    "simulator": bench_simulator.run,
    "engine": bench_engine.run,
    "calibrate": bench_calibrate.run,
    "tune": bench_tune.run,
}
NAMES = ("bookkeeping", *SHAPED, "compiled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help=f"what to measure: {', '.join(NAMES)}")
    add("overrides", nargs="*", metavar="NAME=VALUE", help=f"{', '.join(SHAPED)}: what to measure, see below")
    add("--only", metavar="STRATEGY,...", help="bookkeeping: these strategies alone")
    add("--sequences", metavar="N", type=int, help=f"bookkeeping: running at once ({bench_bookkeeping.SEQUENCES})")
    add("--steps", metavar="N", type=int, help=f"bookkeeping: decode steps of each repeat ({bench_bookkeeping.STEPS})")
    add("--requests", metavar="N", type=int, help=f"bookkeeping: of the trace ({bench_bookkeeping.REQUESTS:,})")
    add("--repeats", metavar="N", type=int, default=5, help="how often each is measured (5)")
    add("--json", action="store_true", help="print an object: on what, and a list of settings with their costs")
    add("--out", metavar="FILE", type=Path, help="also write the table to FILE, in Markdown")
    helps = (bench.HELP for bench in (bench_kernels, bench_engine, bench_simulator, bench_calibrate, bench_tune))
    parser.epilog = "\n\n".join((*helps, str(parser.epilog)))


def run(args: argparse.Namespace) -> int:
    if args.name not in NAMES:
        raise UsageError(f"{args.name!r}: nothing of that name to measure; allowed is {', '.join(NAMES)}")
    if args.repeats < 1:
        raise UsageError(f"--repeats {args.repeats}: allowed is a whole number, 1 or more")
    if args.name != "calibrate":  # whose --out is a folder
        output.check(args.out)
    if args.name != "bookkeeping":
        _only_for("bookkeeping", args, ("only", "sequences", "steps", "requests"))
    if args.name in SHAPED:
        return SHAPED[args.name](args)
    _only_for(", ".join(SHAPED), args, ("overrides",))
    if args.name == "compiled":
        return bench_compiled.run(args)
    return bench_bookkeeping.run(args)


def _only_for(name: str, args: argparse.Namespace, options: tuple[str, ...]) -> None:
    """UsageError: one of the options of `bench name` was given to another."""
    if given := [option for option in options if getattr(args, option) not in (None, [])]:
        what = args.overrides[0] if given == ["overrides"] else f"--{given[0]}"
        raise UsageError(f"{what}: allowed with kvlab bench {name} only")

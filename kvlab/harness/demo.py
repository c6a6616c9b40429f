"""`kvlab demo`: three strategies serve one workload with a real model at equal bytes; then what to look at.

A second, smaller sweep stands beside it: vattention with the 2 MiB page groups that stock CUDA maps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvlab.harness import report, sweep
from kvlab.harness.cli import Parser

EQUAL = "equal-bytes"
STOCK = ("strategy=vattention", "page_group_bytes=2097152", "seed=0")
LOOK = """\
What to look at
- token state: what the memory is for. contiguous reserves max_len for everybody, and most of it is never written.
- internal and reservation: paged wastes part of the last block of a sequence, vattention part of its last page group.
- mean batch: the same bytes serve more sequences at once; tokens/s follows: a decode step costs little more for them.
- preemptions: the price of handing memory out by need. When it runs out, the newest gives way and is computed again.
- committed: contiguous and paged take the whole pool at start, vattention what was ever mapped.
- digest: the strategies generate the same tokens. Only the memory is managed differently.
- 2 MiB: stock CUDA maps no less, which is 2,730 tokens of this small model in each of its 60 tensors: 120 MiB for any
  sequence, so nearly the whole pool for one. Models with larger heads, or tensors sliced over layers, need fewer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", type=Path, default=Path("outputs/demo"), help="where results go")
    parser.add_argument("overrides", metavar="NAME=VALUE", nargs="*", help="overrides, as for kvlab sweep")


def run(args: argparse.Namespace) -> int:
    """0 if every run is finished; what is finished already is not repeated."""
    status = max(_sweep(args, EQUAL), _sweep(args, "stock-page-groups", *STOCK))
    made = report.make(args.dir)
    paths = [report.write_report(args.dir / EQUAL), report.write_report(args.dir)]
    print(f"\n{made.text}\n\n{LOOK}\n\nTables and figures: {paths[0]} (the three at equal bytes), {paths[1]} (all)")
    return status


def _sweep(args: argparse.Namespace, name: str, *overrides: str) -> int:
    parser = Parser(prog="kvlab sweep")
    sweep.add_arguments(parser)
    where = f"hydra.sweep.dir={sweep.quoted(str(args.dir / name))}"
    return sweep.run(parser.parse_args(["--no-report", "experiment=demo", *overrides, *args.overrides, where]))

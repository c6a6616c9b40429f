"""`kvlab strategies`: what is installed, and what each strategy can do. Imports the strategies, never torch."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from typing import Any

from kvlab.harness import nodes, plugins
from kvlab.strategy import Strategy

COLUMNS = ("name", "geometry", "virtual", "shares", "knobs", "from", "what")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a list of objects")


def run(args: argparse.Namespace) -> int:
    rows, broken = [], 0
    for item in plugins.everything():
        if why := plugins.problem(item):
            broken = 1
            print(f"kvlab: {item}: {why}", file=sys.stderr)
        elif item.group == "strategy":
            rows.append(describe(item))
    print(json.dumps(rows, indent=1) if args.json else table(rows))
    return broken


def describe(item: plugins.Installed) -> dict[str, Any]:
    """One strategy. `knobs`: shared names that it uses, then its own arguments; `what`: a line on it."""
    cls = nodes.strategy_class(str(item.node.get("_target_")))
    shared = nodes.knobs(item.node, cls)
    own = [f"strategy.{name}" for name in item.node if name != "_target_" and name not in shared]
    return {
        "name": item.name,
        "geometry": geometry(cls),
        "virtual": cls.virtual,
        "shares": cls.lookup is not Strategy.lookup,
        "knobs": [*shared, *own],
        "from": item.package,
        "what": item.what or summary(cls),
    }


def geometry(cls: type[Strategy]) -> str:
    """blocks if a block table stands between a sequence and its slots, else rows."""
    return "blocks" if "block_size" in inspect.signature(cls).parameters else "rows"


def summary(cls: type[Strategy]) -> str:
    """The first line of what the strategy's file says of itself."""
    module = sys.modules[cls.__module__]
    return ((module.__doc__ or cls.__doc__ or "").strip().splitlines() or [""])[0]


def table(rows: list[dict[str, Any]]) -> str:
    cells = [COLUMNS, *(tuple(_word(row[column]) for column in COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (", ".join(value) or "-") if isinstance(value, list) else str(value)

"""`kvlab config show`: the configuration that overrides make, every value resolved, and who set it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from kvlab.errors import UsageError

BEFORE = ("experiment=", "preset=")  # what other overrides win over


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="show", choices=["show"], help="print the configuration as YAML")
    parser.add_argument("overrides", metavar="NAME=VALUE", nargs="*", help="overrides, as for kvlab run")
    parser.add_argument("--json", action="store_true", help="print it as JSON, as config.json of the run will hold it")


def run(args: argparse.Namespace) -> int:
    """0; wrong values are a UsageError."""
    from kvlab.harness.compose import Composer

    with Composer() as composer:
        config = composer.compose(args.overrides).config
        print(json.dumps(config, indent=1) if args.json else show(config, _who(composer, args.overrides)))
    return 0


def show(config: dict[str, Any], who: dict[str, str]) -> str:
    """YAML, with a comment behind each value that `who` names a reason for; keys joined by dots."""
    from kvlab.harness.results import flatten

    lines, open_at = [], list[str]()
    for key, value in flatten(config):
        *parents, name = key.split(".")
        common = next((i for i, (a, b) in enumerate(zip(parents, open_at, strict=False)) if a != b), None)
        common = min(len(parents), len(open_at)) if common is None else common
        lines += [f"{'  ' * depth}{parents[depth]}:" for depth in range(common, len(parents))]
        open_at = parents
        note = f"  # {who[key]}" if key in who else ""
        lines.append(f"{'  ' * len(parents)}{name}: {_scalar(value)}{note}")
    return "\n".join(lines)


def _scalar(value: Any) -> str:
    """JSON is YAML; a plain word needs no quotes."""
    text = json.dumps(value)
    plain = isinstance(value, str) and value.replace("_", "").replace(".", "").isalnum() and not value[0].isdigit()
    return str(value) if plain and value.lower() not in WORDS else text


WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # YAML reads them as something else


def _who(composer: Any, overrides: Sequence[str]) -> dict[str, str]:
    """The override that changed a value last, where one did: each is added in turn to those it wins over."""
    from kvlab.harness.results import flatten

    ordered = sorted(overrides, key=lambda line: next((i for i, b in enumerate(BEFORE) if line.startswith(b)), 9))
    known, told = dict(flatten(composer.compose([]).config)), dict[str, str]()
    for count, line in enumerate(ordered, 1):
        try:
            now = dict(flatten(composer.compose(ordered[:count]).config))
        except UsageError:  # it needs one that comes later, which its changes are put down to
            continue
        told |= {key: line for key, value in now.items() if key not in known or known[key] != value}
        known = now
    return told

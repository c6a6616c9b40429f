"""`kvlab generate`: text from the model, its keys and values managed by a strategy."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from kvlab.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("overrides", metavar="NAME=VALUE", nargs="*", help="overrides, as for kvlab run")
    add("--prompt", metavar="TEXT", required=True, help="what the model continues; - reads standard input")
    add("--max-tokens", metavar="N", type=int, default=128, help="tokens to generate at most (default: 128)")
    add("--temperature", metavar="T", type=float, help="0 takes the likeliest token (default: engine.temperature)")
    add(
        "--json",
        action="store_true",
        help="print one object, the text in it, instead of the text as it comes",
    )


def run(args: argparse.Namespace) -> int:
    from kvlab.harness.compose import compose
    from kvlab.harness.run import notices

    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not prompt:
        raise UsageError("--prompt is empty: allowed is any text")
    if args.max_tokens < 1:
        raise UsageError(f"--max-tokens {args.max_tokens}: allowed is a whole number, 1 or more")
    if args.temperature is not None and not 0 <= args.temperature < float("inf"):
        raise UsageError(f"--temperature {args.temperature}: allowed is a number, 0 or more")
    composed = compose(args.overrides)
    for line in notices(composed, args.overrides):
        print(line, file=sys.stderr)
    temperature = composed.config["engine"]["temperature"] if args.temperature is None else args.temperature
    (_object if args.json else _text)(composed.config, prompt, args.max_tokens, temperature)
    return 0


def _object(config: dict[str, Any], prompt: str, max_tokens: int, temperature: float) -> None:
    from kvlab.generate import generate

    pieces: list[str] = []
    result = generate(config, prompt, max_tokens, temperature, pieces.append)
    print(json.dumps({**result, "text": "".join(pieces)}, indent=1))


def _text(config: dict[str, Any], prompt: str, max_tokens: int, temperature: float) -> None:
    """The text on standard output, what it took on standard error."""
    from kvlab.generate import generate

    result = generate(config, prompt, max_tokens, temperature, _emit)
    print()
    print(result["capacity"], file=sys.stderr)
    print(f"{result['output_tokens']} tokens, {result['tokens_per_s']:.1f}/s", file=sys.stderr)


def _emit(text: str) -> None:
    print(text, end="", flush=True)

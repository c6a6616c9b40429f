"""`kvlab fetch model`: the model's file into the cache directory, once."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("model",), help="model: SmolLM2-135M-Instruct, about 90 MB")


def run(args: argparse.Namespace) -> int:
    from kvlab.model.fetch import fetch_model

    path = fetch_model(progress=lambda line: print(line, file=sys.stderr, flush=True))
    print(path)
    return 0

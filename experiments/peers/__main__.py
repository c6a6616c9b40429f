"""kvlab beside other engines, each in an environment of its own in a folder outside the repository.

python experiments/peers setup FOLDER [NAME ...]    vllm, transformers, llama.cpp; llama.cpp is built: minutes
python experiments/peers run FOLDER [NAME ...]      the same work on kvlab and on those, interleaved
python experiments/peers blocks FOLDER              kvlab's strategies and vLLM's block manager, one trace through both
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from environments import PEERS, setup

from kvlab.errors import UsageError
from kvlab.harness import output


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        wrong = [name for name in args.names if name not in PEERS]
        if wrong:
            raise UsageError(f"{', '.join(wrong)}: no such peer; allowed is {', '.join(PEERS)}")
        args.names = args.names or list(PEERS)
        return {"setup": _setup, "run": _run, "blocks": _blocks}[args.verb](args)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("verb", choices=("setup", "run", "blocks"))
    add("folder", type=Path)
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; without any: all")
    add("--repeats", type=int, default=5, metavar="N", help="how often each is measured (5)")
    add("--batches", default="1,8,32,64", metavar="N,...", help="run: sequences of a batch (1,8,32,64)")
    add("--threads", type=int, default=2, metavar="N", help="run: of each engine (2)")
    add("--requests", type=int, default=10_000, metavar="N", help="blocks: how many (10000)")
    add("--out", type=Path, metavar="FILE.md", help="also write the page to FILE.md")
    return parser


def _setup(args: argparse.Namespace) -> int:
    setup(args.folder, args.names)
    return 0


def _run(args: argparse.Namespace) -> int:
    from page import markdown, record
    from race import race

    sizes = [int(word) for word in args.batches.split(",")]
    entries = race(args.folder.resolve(), args.names, sizes, args.repeats, args.threads)
    options = f"--repeats {args.repeats} --batches {args.batches} --threads {args.threads}"
    command = f"python experiments/peers run FOLDER {' '.join(args.names)} {options}"
    return _tell(markdown(entries, sizes, args.threads, command), record(entries, sizes, command), args.out)


def _blocks(args: argparse.Namespace) -> int:
    from blocks import markdown, measure

    found = measure(args.folder.resolve(), args.requests, args.repeats)
    command = f"python experiments/peers blocks FOLDER --requests {args.requests} --repeats {args.repeats}"
    return _tell(markdown(found, command), {"command": command, **found}, args.out)


def _tell(text: str, record: dict[str, object], out: Path | None) -> int:
    if out:
        output.write(out, text)
    print(text)
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())

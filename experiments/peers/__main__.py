"""kvlab beside other engines, each in an environment of its own in a folder outside the repository.

python experiments/peers setup FOLDER [NAME ...]    vllm, transformers, llama.cpp; llama.cpp is built: minutes
python experiments/peers run FOLDER [NAME ...]      the same work on kvlab and on those, interleaved
python experiments/peers first FOLDER               seconds from kvlab's start to its first token, alone
python experiments/peers blocks FOLDER              kvlab's strategies and vLLM's block manager, one trace through both
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from statistics import median

from environments import MAX_SEQS, PEERS, setup

from kvlab.errors import UsageError
from kvlab.harness import output


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        _check(args)
        return {"setup": _setup, "run": _run, "first": _first, "blocks": _blocks}[args.verb](args)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _check(args: argparse.Namespace) -> None:
    if wrong := [name for name in args.names if name not in PEERS]:
        raise UsageError(f"{', '.join(wrong)}: no such peer; allowed is {', '.join(PEERS)}")
    for name in ("repeats", "requests", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)}: allowed is a whole number, 1 or more")
    sizes = args.batches.split(",")
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= MAX_SEQS for word in sizes):
        raise UsageError(f"--batches {args.batches}: allowed are whole numbers, 1 to {MAX_SEQS}, with commas between")
    args.sizes, args.names = [*map(int, sizes)], args.names or list(PEERS)
    output.check(args.out)
    if args.verb == "setup":
        return
    if args.verb == "first":
        if not args.folder.is_dir():
            raise UsageError(f"{args.folder}: no such folder; setup makes it")
        return
    for name in args.names if args.verb == "run" else ["vllm"]:
        if not Path(PEERS[name].command(args.folder)[0]).exists():
            raise UsageError(f"{args.folder}: no environment of {name} there; setup makes it")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("verb", choices=("setup", "run", "first", "blocks"))
    add("folder", type=Path)
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; without any: all")
    add("--repeats", type=int, default=5, metavar="N", help="how often each is measured (5)")
    add("--batches", default="1,8,32,64", metavar="N,...", help="run: sequences of a batch (1,8,32,64)")
    add("--threads", type=int, default=2, metavar="N", help="run, first: of each engine (2)")
    add(
        "--requests",
        type=int,
        metavar="N",
        help="blocks: how many (10000); run: the first so many of the workload (64)",
    )
    add("--out", type=Path, metavar="FILE.md", help="also write the page to FILE.md")
    return parser


def _setup(args: argparse.Namespace) -> int:
    setup(args.folder, args.names)
    return 0


def _run(args: argparse.Namespace) -> int:
    from page import markdown, record
    from race import race
    from works import workload

    work = workload(args.requests)
    options = f"--requests {args.requests} " if args.requests else ""
    options += f"--repeats {args.repeats} --batches {args.batches} --threads {args.threads}"
    command = f"python experiments/peers run FOLDER {' '.join(args.names)} {options}"
    for entries in race(args.folder.resolve(), args.names, work, args.sizes, args.repeats, args.threads):
        text = markdown(entries, work, args.sizes, args.threads, command)
        if args.out:  # after each repeat: what comes next may fail, and minutes would be lost
            output.write(args.out, text)
    return _tell(text, record(entries, work, args.sizes, command), None)


def _first(args: argparse.Namespace) -> int:
    from race import first_token_s

    first_token_s(args.folder.resolve(), args.threads)  # whose caches may be cold
    seconds = [first_token_s(args.folder.resolve(), args.threads) for _ in range(args.repeats)]
    command = f"python experiments/peers first FOLDER --repeats {args.repeats} --threads {args.threads}"
    text = f"first token after, s: {median(seconds):.2f}; each: {', '.join(f'{one:.2f}' for one in seconds)}"
    return _tell(text, {"command": command, "first_token_s": seconds}, args.out)


def _blocks(args: argparse.Namespace) -> int:
    from blocks import markdown, measure

    requests = args.requests or 10_000
    found = measure(args.folder.resolve(), requests, args.repeats)
    command = f"python experiments/peers blocks FOLDER --requests {requests} --repeats {args.repeats}"
    return _tell(markdown(found, command), {"command": command, **found}, args.out)


def _tell(text: str, record: dict[str, object], out: Path | None) -> int:
    if out:
        output.write(out, text)
    print(text)
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the peers' processes go with this one
    sys.exit(main())

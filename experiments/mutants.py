"""How much of the strategies' bookkeeping the contract sees: mutants of their files, judged by it and nothing else.

    python experiments/mutants.py --explained docs/mutants.md --out experiments/mutants

Each mutant lives in a process of its own. It is caught if the contract fails, or it raises, or it computes
without end. Few short lives come first, then more and longer ones; who passes all of them has survived.
Writes OUT.jsonl, a line for each mutant as it is judged (a second run judges only what is not there yet, or
was judged on other sources), and OUT.md. The same seed makes the same table.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from kvlab.strategy import Strategy
from kvlab.testing import LifeError, lives
from kvlab.testing.memories import Setting
from kvlab.testing.mutate import Mutant, mutants

ROOT = Path(__file__).parents[1]
IMPORTED = {  # a file -> those that are built on it
    "paged": ("token_pool", "idle_blocks", "cached_blocks", "prefix", "radix"),
    "idle_blocks": ("cached_blocks", "prefix", "radix"),
    "cached_blocks": ("prefix", "radix"),
    "places": ("prefix",),
    "rows": ("vattention",),
}
JUDGED_BY: dict[str, list[tuple[str, str, dict[str, Any]]]] = {  # a file -> (its or another's module, class, arguments)
    "buddy": [("buddy", "Buddy", {}), ("buddy", "Buddy", {"fit": "first"})],
    "contiguous": [("contiguous", "Contiguous", {})],
    "growing": [("growing", "Growing", {"mode": mode, "step": 3}) for mode in ("exact", "step", "double")],
    "paged": [("paged", "Paged", {"block_size": None}), ("prefix", "Prefix", {"block_size": None})],
    "prefix": [
        ("prefix", "Prefix", {"block_size": None}),
        ("prefix", "Prefix", {"block_size": None, "duplicates": "dedupe"}),
        ("prefix", "Prefix", {"block_size": None, "one_queue": True, "null_block": True}),
    ],
    "radix": [
        ("radix", "Radix", {"block_size": None}),
        ("radix", "Radix", {"block_size": None, "partial": "copy"}),
        ("radix", "Radix", {"block_size": None, "evict": "block"}),
        ("radix", "Radix", {"block_size": 1}),
    ],
    "token_pool": [("token_pool", "TokenPool", {})],
    "vattention": [("vattention", "VAttention", {}), ("vattention", "VAttention", {"map_ahead": 2})],
}
CACHES = JUDGED_BY["prefix"] + JUDGED_BY["radix"][:2]
JUDGED_BY |= {"rows": JUDGED_BY["vattention"], "cached_blocks": CACHES, "idle_blocks": CACHES}
JUDGED_BY["places"] = JUDGED_BY["prefix"]
BESIDE = ("arrival", "budget", "eviction", "moves", "ranges", "strategy", "tables")  # what strategies are made of
STAGES = ((8, 20), (16, 60), (112, 100))  # lives, shared among the settings but 8 each at least; steps
COMPUTING_S = 10  # of the lives of one stage under one setting: they take 3 s or so
MEMORY_BYTES = 4 << 30
Row = dict[str, Any]


def main() -> int:
    args = parser().parse_args()
    out, sources = args.out.with_suffix(".jsonl"), fingerprint()
    asked = dict(chosen(args.files or sorted(JUDGED_BY), args.count, args.seed))
    known = {row["mutant"]: row for row in read(out) if row["mutant"] in asked and row["sources"] == sources}
    out.write_text("".join(json.dumps(row) + "\n" for row in known.values()))
    missing = {key: pair for key, pair in asked.items() if key not in known}
    with out.open("a") as lines:
        for number, row in enumerate(judged(missing, args.jobs), 1):
            known[row["mutant"]] = row = {**row, "sources": sources}
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            print(f"\r{number} of {len(missing)} judged", end="", file=sys.stderr, flush=True)
    rows = [known[key] for key in asked]
    explained = args.explained.read_text() if args.explained else ""
    table = report(rows, explained)
    args.out.with_suffix(".md").write_text(table)
    print(f"\n{table}")
    survivors = [row for row in rows if row["caught"] is None]
    return int(len(survivors) > len(rows) / 10 or any(row["mutant"] not in explained for row in survivors))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(sorted(JUDGED_BY))} (all)")
    made.add_argument("--count", type=int, default=160, help="mutants, or as many as there are (%(default)s)")
    made.add_argument("--seed", type=int, default=0, help="which ones (%(default)s)")
    made.add_argument("--jobs", type=int, default=2, help="judged at once (%(default)s)")
    made.add_argument("--out", type=Path, default=Path("mutants"), help="for OUT.jsonl and OUT.md (%(default)s)")
    made.add_argument("--explained", type=Path, help="a text that names survivors; those that it does not fail the run")
    return made


def chosen(files: list[str], count: int, seed: int) -> Iterator[tuple[str, tuple[str, Mutant]]]:
    """(what a mutant is called, (file, mutant)): so many of all, each as likely, in the order of their lines."""
    keys, every = list[str](), list[tuple[str, Mutant]]()
    for file in files:
        of_file, names = mutants((ROOT / "strategies" / f"{file}.py").read_text()), Counter[str]()
        for mutant in of_file:
            name = f"{file}: {mutant.where}: {mutant.before} -> {mutant.after}"
            names[name] += 1
            keys.append(name + (f" (no. {names[name]})" if names[name] > 1 else ""))
            every.append((file, mutant))
    for index in sorted(random.Random(seed).sample(range(len(every)), min(count, len(every)))):
        yield keys[index], every[index]


def fingerprint() -> str:
    """Of all that a judgement depends on."""
    paths = [*(ROOT / "strategies").glob("*.py"), *(ROOT / "kvlab" / "testing").glob("*.py"), Path(__file__)]
    paths += [ROOT / "kvlab" / f"{name}.py" for name in BESIDE]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:12]


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# --- judging


def judged(asked: dict[str, tuple[str, Mutant]], jobs: int) -> Iterator[Row]:
    """A row for each, as they are done; `jobs` processes at once."""
    context, left, running = multiprocessing.get_context("fork"), list(asked.items())[::-1], dict[Connection, Any]()
    while left or running:
        while left and len(running) < jobs:
            key, (file, mutant) = left.pop()
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=judge, args=(file, mutant.source, there))
            process.start()
            there.close()
            running[here] = key, file, mutant, process
        for ready in wait(list(running)):
            key, file, mutant, process = running.pop(ready)  # type: ignore[index]
            try:
                verdict = ready.recv()  # type: ignore[union-attr]
            except EOFError:
                verdict = {"caught": "no end", "reason": f"more than {COMPUTING_S} s of computing, or the process died"}
            process.join()
            yield {"mutant": key, "file": file, "line": mutant.line, "kind": mutant.kind, **verdict}


def judge(file: str, source: str, result: Connection) -> None:
    """In a process of its own: live with the mutant in the place of its file."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    result.send(verdict(file, source))


def verdict(file: str, source: str) -> Row:
    """`caught`: by which rule or error, after how many seconds of computing; None: it survived."""
    try:
        install(file, source)
        for count, steps in STAGES:
            each = max(8, count // len(JUDGED_BY[file]))
            for index, (module, name, arguments) in enumerate(JUDGED_BY[file]):
                limit_computing()
                lives(maker(module, name, arguments), range(index * each, index * each + each), steps)
    except LifeError as failed:
        return {"caught": failed.rule, "reason": str(failed).splitlines()[0], "seconds": seconds()}
    except Exception as error:  # a mutant may raise anything
        return {"caught": type(error).__name__, "reason": str(error), "seconds": seconds()}
    return {"caught": None, "reason": "", "seconds": seconds()}


def install(file: str, source: str) -> None:
    """The mutant is the module; those that are built on it are imported anew."""
    for name in IMPORTED.get(file, ()):
        sys.modules.pop(f"kvlab.strategies.{name}", None)
    module = ModuleType(f"kvlab.strategies.{file}")
    sys.modules[module.__name__] = module
    exec(compile(source, f"{file}.py", "exec"), module.__dict__)


def maker(module: str, name: str, arguments: dict[str, Any]) -> Callable[[Setting], Strategy]:
    """block_size None: the setting's."""
    cls = getattr(importlib.import_module(f"kvlab.strategies.{module}"), name)

    def make(setting: Setting) -> Strategy:
        sized = {"block_size": setting.block_size} if arguments.get("block_size", 0) is None else {}
        strategy: Strategy = cls(setting.memory, **{**arguments, **sized})
        return strategy

    return make


def seconds() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_utime, 1)


def limit_computing() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    stop = int(used.ru_utime + used.ru_stime) + COMPUTING_S
    resource.setrlimit(resource.RLIMIT_CPU, (stop, resource.getrlimit(resource.RLIMIT_CPU)[1]))


# --- the table


def report(rows: list[Row], explained: str) -> str:
    lines = [
        "# Mutants of the strategies, judged by the contract", "",
        "| file | mutants | caught | by a rule | by an error | without end | survived | seconds, median | most |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    files = list(dict.fromkeys(row["file"] for row in rows))
    lines += [line(f"{file}.py", [row for row in rows if row["file"] == file]) for file in files]
    lines += [line("all", rows), "", "Seconds are those of computing until a mutant was caught.", ""]
    rules = Counter(row["caught"] for row in rows if row["caught"] is not None)
    lines += ["Caught by: " + ", ".join(f"{rule} {count}" for rule, count in rules.most_common()) + ".", ""]
    lines += ["| survivor | line | explained |", "|---|---:|---|"]
    for row in rows:
        if row["caught"] is None:
            name = row["mutant"].replace("|", "\\|")
            lines.append(f"| `{name}` | {row['line']} | {'yes' if row['mutant'] in explained else 'no'} |")
    return "\n".join(lines) + "\n"


def line(name: str, rows: list[Row]) -> str:
    caught = [row for row in rows if row["caught"] is not None]
    errors = sum(row["caught"][0].isupper() for row in caught)
    endless = sum(row["caught"] in ("no end", "it returns") for row in caught)
    took = sorted(row.get("seconds", COMPUTING_S) for row in caught) or [0.0]
    share = f"{len(caught)} ({len(caught) / len(rows):.0%})"
    numbers = [len(caught) - errors - endless, errors, endless, len(rows) - len(caught)]
    cells = [name, len(rows), share, *numbers, took[len(took) // 2], took[-1]]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())

"""kvlab and its peers, one after another in every repeat, all others standing still."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments import HERE, MAX_SEQS, PEERS, preloaded
from processes import Others, Peak, Process
from works import MAX_LEN, OUTPUT, Work, batch, decode_rate, first, prefill_rate

from kvlab.errors import UsageError

SLOW_S = 30.0  # who takes longer for a piece of work is not asked for it again
POOL_BYTES = 1 << 30


@dataclass
class Entry:
    """What is known of one engine; the lists are over the repeats."""

    version: str
    pool_bytes: int
    first_token_s: float
    peak_pss_bytes: int
    others_cpu_share: float = 0.0
    wall_s: dict[str, list[float]] = field(default_factory=dict)  # by the work's name

    def rates(self, name: str, size: int) -> list[float]:
        """Tokens a second in each repeat: "workload", "decode" or "prefill" of a batch."""
        if name == "workload":
            return [size / seconds for seconds in self.wall_s.get("workload", [])]
        prefills = self.wall_s.get(batch(size, 1).name, [])
        if name == "prefill":
            return [prefill_rate(size, seconds) for seconds in prefills]
        wholes = self.wall_s.get(batch(size, OUTPUT).name, [])
        # Who is slow at whole answers is asked for them once, and for their first tokens in every repeat.
        return [decode_rate(size, *pair) for pair in zip(wholes, prefills, strict=False)]


def race(
    folder: Path, peers: list[str], work: Work, sizes: list[int], repeats: int, threads: int
) -> Iterator[dict[str, Entry]]:
    """What is known after each repeat. kvlab first. The folder is one that `setup` has made; `work`: the workload."""
    works = [work, *(batch(size, output) for size in sizes for output in (1, OUTPUT))]
    entries, processes = {}, {}
    with ExitStack() as stack:
        for name in ["kvlab", *peers]:
            _say(f"{name} starts")
            processes[name], entries[name] = _start(name, folder, threads, stack)
        for repeat in range(repeats):
            for one in works:
                _say(f"repeat {repeat + 1} of {repeats}: {one.name}")
                for name, process in processes.items():
                    _measure(process, entries[name], one)
            yield entries


def _start(name: str, folder: Path, threads: int, stack: ExitStack) -> tuple[Process, Entry]:
    """A process that has brought its first token, and then done what takes most memory, and stands still."""
    process = Process(name, *_spawn(name, folder, threads), folder / f"{name}.log")
    stack.callback(process.close)
    process.ask(first().message)
    since = process.since_start()
    with Peak(process) as peak:
        process.ask(batch(MAX_SEQS, OUTPUT).message)
    process.signal(signal.SIGSTOP)
    return process, Entry(process.facts["version"], process.facts["pool_bytes"], since, peak.bytes)


def first_token_s(folder: Path, threads: int) -> float:
    """Seconds from the start of kvlab's process to its first token; it ends then."""
    process = Process("kvlab", *_spawn("kvlab", folder, threads), folder / "kvlab.log")
    try:
        process.ask(first().message)
        return process.since_start()
    finally:
        process.close()


def _spawn(name: str, folder: Path, threads: int) -> tuple[list[str], dict[str, Any], dict[str, str]]:
    """Command, settings and environment."""
    settings = {"threads": threads, "max_seqs": MAX_SEQS, "max_len": MAX_LEN, "pool_bytes": POOL_BYTES}
    if name == "kvlab":
        return [sys.executable, str(HERE / "side_kvlab.py")], settings, {}
    settings["model"] = str(folder / PEERS[name].model)
    libraries = ":".join(preloaded(folder)) if name == "vllm" else ""
    return PEERS[name].command(folder), settings, {"LD_PRELOAD": libraries} if libraries else {}


def _measure(process: Process, entry: Entry, work: Work) -> None:
    done = entry.wall_s.setdefault(work.name, [])
    if done and done[0] > SLOW_S:
        return
    with process.running():
        others = Others(process)
        answer = process.ask(work.message)
        entry.others_cpu_share = max(entry.others_cpu_share, others.share())
    if answer["output_tokens"] != sum(work.outputs):
        raise UsageError(
            f"{process.name}: {work.name}: {answer['output_tokens']} tokens came, {sum(work.outputs)} were asked for"
        )
    done.append(answer["wall_s"])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

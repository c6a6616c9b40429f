"""Two managers that answer the operations of vllm_trace.py: a strategy of kvlab's, and vLLM's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from vllm_trace import Decision, Life, Operation

from kvlab.build import build
from kvlab.errors import UsageError
from kvlab.strategy import Arrival, Memory

BLOCK, BLOCKS, MAX_LEN = 16, 96, 1 << 14
SIDE = Path(__file__).with_name("vllm_side.py")


class Ours:
    """A strategy of kvlab, asked as vLLM's manager is asked.

    vLLM publishes a block once it is allocated to known tokens, before they are computed; so `wrote` is called at once.
    """

    def __init__(self, node: dict[str, Any], caching: bool, lives: list[Life]) -> None:
        # Without a null block of its own, the strategy gets one block fewer.
        blocks = BLOCKS if node.get("null_block") else BLOCKS - 1
        self.strategy = build(node, Memory(blocks * BLOCK, 1, MAX_LEN, 64, 64))
        self.caching, self.ids = caching, [life.ids for life in lives]
        self.evicted: list[int] = []
        if hasattr(self.strategy, "idle"):
            self.watch(self.strategy.idle, self.strategy.published)

    def watch(self, idle: Any, published: bytearray) -> None:
        """Note the published blocks that are popped; free blocks may wait in the same line."""
        pop_all = idle.pop_all

        def noted(count: int) -> list[int]:
            blocks: list[int] = pop_all(count)
            self.evicted += [block for block in blocks if published[block]]
            return blocks

        idle.pop_all = noted

    def __call__(self, operation: Operation) -> Decision:
        name, *numbers = operation
        self.evicted = []
        granted, hit, blocks = getattr(self, name)(*numbers)
        self.strategy.drain()
        usage = self.strategy.usage()
        return Decision(granted, hit, (usage.free + usage.cached) // BLOCK, self.evicted, blocks)

    def lookup(self, seq: int, known: int) -> int:
        return self.strategy.lookup(self.arrival(seq, known))

    def arrival(self, seq: int, known: int) -> Arrival:
        ids = self.ids[seq]
        return Arrival(seq, known, known, len(ids), len(ids), ids[:known] if self.caching else None)

    def admit(self, seq: int, known: int, new: int) -> tuple[int, int, list[int]]:
        hit = self.lookup(seq, known)
        if self.strategy.admit(self.arrival(seq, known), new) is None:
            return 0, hit, []
        self.wrote(seq, hit + new)
        return 1, hit, self.strategy.table[seq].tolist()

    def extend(self, seq: int, length: int, upto: int) -> tuple[int, int, list[int]]:
        held = self.strategy.table.count[seq]
        if self.strategy.extend(seq, length, upto) is None:
            return 0, 0, []
        self.wrote(seq, upto)
        return 1, 0, self.strategy.table[seq][held:].tolist()

    def free(self, seq: int, *_: int) -> tuple[int, int, list[int]]:
        self.strategy.release(seq)
        return 1, 0, []

    preempt = free

    def wrote(self, seq: int, length: int) -> None:
        self.strategy.wrote(seq, length, self.ids[seq] if self.caching else None)


class Theirs:
    """vLLM's manager in a process of its own, for one trace after another."""

    def __init__(self, python: str) -> None:
        self.python = python
        try:
            self.process = subprocess.Popen(
                [python, str(SIDE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"--python {python}: cannot be started ({error.strerror})") from None

    def begin(self, caching: bool, lives: list[Life]) -> str:
        """A new manager for these requests; vLLM's version."""
        self.new = {seq: life.ids for seq, life in enumerate(lives)}
        facts = self.ask({"blocks": BLOCKS, "block_size": BLOCK, "caching": caching, "max_len": MAX_LEN})
        if "vllm" not in facts:
            raise UsageError(f"--python {self.python}: no vLLM that runs ({facts['error']}); see experiments/README.md")
        return str(facts["vllm"])

    def __call__(self, operations: list[Operation]) -> list[Decision]:
        seqs = {operation[1] for operation in operations if operation[0] == "admit"}
        ids = {seq: self.new.pop(seq).tolist() for seq in seqs if seq in self.new}
        return [Decision(*decision) for decision in self.ask({"ids": ids, "operations": operations})]

    def ask(self, message: Any) -> Any:
        stdin, stdout = self.process.stdin, self.process.stdout
        print(json.dumps(message), file=stdin, flush=True)
        line = stdout.readline() if stdout else ""
        if not line:
            raise UsageError(f"--python {self.python}: vllm_side.py ended with status {self.process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Theirs:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

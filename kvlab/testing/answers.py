"""What an answer of admit or fork must be, and what a strategy must be like before its first sequence."""

from __future__ import annotations

from typing import Any

from kvlab.strategy import Arrival, Grant, Strategy, Usage
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence


def capacity_at_start(strategy: Strategy) -> int:
    """Bytes that it manages. Raises RuleError if they are more than it was given, or if some are held already."""
    usage, memory = strategy.usage(), strategy.memory
    if usage.held or usage.cached:
        raise RuleError("usage", f"before the first sequence {usage}", "strategy.usage()[:2] == (0, 0)")
    if usage.free > memory.bytes:
        text = f"{usage.free} bytes are free, of {memory.bytes} that it was given"
        raise RuleError("usage", text, "strategy.usage().free <= memory.bytes")
    if strategy.virtual and len(strategy.pools) > 1:
        raise RuleError("pools", "the contract cannot judge virtual memory in more than one pool")
    if not strategy.virtual and sum(pool.slots * pool.token_bytes for pool in strategy.pools) > memory.bytes:
        text = f"{strategy.pools} is more than the {memory.bytes} bytes that it was given"
        raise RuleError("usage", text, "strategy.pools[0].slots * memory.token_bytes <= memory.bytes")
    return usage.free


def admitted(strategy: Strategy, arrival: Arrival, grant: Grant, looked: int, new: int, leave: int) -> None:
    """The hit is what lookup said, the room holds what was asked for, and `leave` tokens' worth is left."""
    seq, length = arrival.seq, arrival.length
    if not 0 <= grant.hit < length:
        text = f"sequence {seq} of {length} tokens hits {grant.hit}: one token at least must be left to compute"
        raise RuleError("hit", text)
    if grant.hit != looked:
        raise RuleError("hit", f"sequence {seq} hits {grant.hit} tokens; lookup had said {looked}")
    need = min(grant.hit + new, length)
    if grant.room < need:
        text = f"sequence {seq} hits {grant.hit}, asked for {new} more of {length}, and has room for {grant.room}"
        raise RuleError("room", text)
    if not leave or any(group.window for group in strategy.groups):
        return
    usage, size = strategy.usage(), strategy.memory.token_bytes
    if usage.free + usage.cached < leave * size:
        text = f"admitting sequence {seq} was to leave {leave} tokens' worth, {leave * size} bytes: {usage}"
        raise RuleError("leave", text, f"sum(strategy.usage()[1:3]) >= {leave * size}")


def extended(sequence: Sequence, upto: int, room: int) -> None:
    """The room holds what was asked for, and is no smaller than it was."""
    said = sequence.said or 0
    if room >= max(upto, said):
        return
    asked = f"strategy.extend({sequence.seq}, {sequence.issued}, {upto})"
    if room < upto:
        text = f"sequence {sequence.seq} asked for {upto} tokens and was given a room of {room}"
        raise RuleError("room", text, f"{asked} >= {upto}")
    text = f"sequence {sequence.seq}, which asked for more, had a room of {said} and now has {room}"
    raise RuleError("room", text, f"{asked} >= {said}")


def forked(parent: int, child: Arrival, grant: Grant) -> None:
    """All the child's tokens are in place."""
    if grant.hit != child.length or grant.room < child.length:
        text = f"sequence {child.seq}, forked from {parent} with {child.length} tokens, was granted {grant}"
        raise RuleError("fork", text)


def back(arrival: Arrival, grant: Grant) -> None:
    """All that was stored when it went to the host is in place."""
    if grant.hit != arrival.length or grant.room < arrival.length:
        text = f"sequence {arrival.seq}, back from the host with {arrival.length} tokens, was granted {grant}"
        raise RuleError("swap", text)


class Counted:
    """What `counts` said of evictions before a call, and what was cached."""

    def __init__(self, strategy: Strategy, usage: Usage) -> None:
        self.counts, self.before = dict(strategy.counts), usage

    def judge(self, strategy: Strategy, name: str, answer: Any) -> None:
        """Counts never fall; evicted tokens are those that were cached and are no more."""
        for key, before in self.counts.items():
            if strategy.counts[key] < before:
                raise RuleError("counts", f"{name} took {key} from {before} to {strategy.counts[key]}")
        if "evicted" not in self.counts or answer in (None, False):
            return
        evicted = (strategy.counts["evicted"] - self.counts["evicted"]) * strategy.memory.token_bytes
        cached = self.before.cached
        if evicted > cached + self.before.rounded:  # kept for a copy, a block may leave the cache too
            raise RuleError("counts", f"{name} counts {evicted} bytes as evicted; cached were {cached}")
        if name == "admit" and not answer.hit and (lost := cached - strategy.usage().cached) > evicted:
            text = f"{name} counts {evicted} bytes as evicted; cached were {cached}, {lost} of them no more"
            raise RuleError("counts", text)

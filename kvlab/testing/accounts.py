"""Whether `usage` says what is so: of the bytes that are held, cached, free and mapped. Each rule is one function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvlab.strategy import Usage
from kvlab.testing.gather import gather_from
from kvlab.testing.rule import RuleError

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial


def usage_adds_up(trial: Trial, usage: Usage) -> None:
    """held + cached + free is what it was at the start; nothing is negative."""
    total = usage.held + usage.cached + usage.free
    if total != trial.capacity:
        text = f"held + cached + free = {total}, was {trial.capacity} at the start: {usage}"
        raise RuleError("usage", text, f"sum(strategy.usage()[:3]) == {trial.capacity}")
    if min(usage[:5]) < 0 or usage.rounded > usage.held:
        raise RuleError("usage", f"a figure is out of range: {usage}", "min(strategy.usage()[:5]) >= 0")


def nothing_is_held(usage: Usage) -> None:
    """No sequence, no move: nothing is held."""
    if usage.held:
        raise RuleError(
            "held", f"no sequence runs, but {usage.held} bytes are held: {usage}", "strategy.usage().held == 0"
        )


def held_is_what_tables_hold(trial: Trial, usage: Usage) -> None:
    """held - rounded is the bytes of the distinct live table entries; of the rooms where sequences have rows."""
    strategy, held = trial.strategy, usage.held - usage.rounded
    if strategy.block_size is not None:
        live: list[set[int]] = [set() for _ in strategy.pools]
        for table, group in zip(strategy.tables, strategy.groups, strict=True):
            for seq, row in table.row.items():
                live[group.pool].update(table.data[row, table.start[seq] : table.count[seq]].tolist())
        sizes = [strategy.block_size * pool.token_bytes for pool in strategy.pools]
        expected = sum(len(blocks) * size for blocks, size in zip(live, sizes, strict=True))
        what = f"{' + '.join(str(len(blocks)) for blocks in live)} distinct blocks are in the tables"
    else:
        said = [sequence.said for sequence in trial.running.values()]
        if None in said or len(strategy.groups) > 1:
            return
        expected, what = rooms_bytes(trial, [room or 0 for room in said]), f"the rooms are {said} tokens"
    if held != expected:
        text = f"held - rounded = {held} bytes, but {what}, {expected} bytes: {usage}"
        raise RuleError("held", text, f"strategy.usage().held - strategy.usage().rounded == {expected}")


def rooms_bytes(trial: Trial, rooms: list[int]) -> int:
    """Bytes of the rooms of all sequences; page groups that lie under several rows count once."""
    strategy, shadow = trial.strategy, trial.shadow.of[0]
    if not strategy.virtual or not shadow.aliased:
        return sum(rooms) * strategy.memory.token_bytes
    slot_T = gather_from(strategy.table, list(trial.running), [0] * len(rooms), rooms, strategy.block_size)
    return len(np.unique(shadow.pieces(slot_T))) * strategy.memory.token_bytes // shadow.per_token


def host_is_bounded(trial: Trial) -> None:
    """host_held() is at most memory.host_bytes; 0 where nobody is swapped, and only there."""
    held, allowed = trial.strategy.host_held(), trial.strategy.memory.host_bytes
    if 0 <= held <= allowed and bool(held) == bool(trial.swapped):
        return
    who = f"sequences {list(trial.swapped)} lie" if trial.swapped else "nobody lies"
    bound = f"0 < strategy.host_held() <= {allowed}" if trial.swapped else "strategy.host_held() == 0"
    raise RuleError("host", f"{who} on the host, and {held} of its {allowed} bytes are held", bound)


def mapped_is_backed(trial: Trial, usage: Usage) -> None:
    """usage().backed is the bytes that Map and Unmap have left mapped; a page group under several rows counts once."""
    strategy = trial.strategy
    if not strategy.virtual:
        return
    mapped = trial.shadow.of[0].mapped * strategy.memory.page_group_bytes
    if usage.backed != mapped:
        text = f"usage says {usage.backed} bytes are mapped, {mapped} are"
        raise RuleError("backed", text, f"strategy.usage().backed == {mapped}")

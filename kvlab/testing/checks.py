"""What must hold whenever the moves are carried out and no launch is in flight. Each rule is one function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Copy, Move, Strategy, Unmap
from kvlab.testing.gather import gather_from
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence
from kvlab.testing.shadow import Shadow

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial


def everything(trial: Trial) -> None:
    """All of them."""
    usage_adds_up(trial)
    mapped_is_backed(trial)
    if not trial.running:
        nothing_is_held(trial)
        return
    held_is_what_tables_hold(trial)
    sequences = list(trial.running.values())
    for sequence in sequences:
        table_covers(trial.strategy, sequence)
    stops = [max(sequence.room, sequence.done) for sequence in sequences]
    seqs = [sequence.seq for sequence in sequences]
    slot_T = gather_from(trial.strategy.table, seqs, [0] * len(seqs), stops, trial.strategy.block_size)
    inside_the_pool(trial, sequences, stops, slot_T)
    stop_B = np.array(stops)
    first_B = np.cumsum(stop_B) - stop_B
    position_T = np.arange(len(slot_T)) - np.repeat(first_B, stop_B)
    live_T = position_T < np.repeat([sequence.done for sequence in sequences], stop_B)
    all_hold(trial.shadow, sequences, slot_T[live_T])
    room_is_nobody_elses(trial, sequences, slot_T, live_T, np.repeat(np.arange(len(seqs)), stop_B), position_T)


def table_covers(strategy: Strategy, sequence: Sequence) -> None:
    """The table has an entry for every token of the room."""
    entries, seq = strategy.table.count.get(sequence.seq), sequence.seq
    if entries is None:
        raise RuleError("table", f"sequence {seq} runs, but has no table", f"{seq} in strategy.table.row")
    covered = entries * strategy.block_size if strategy.block_size else sequence.room
    if not entries or covered < max(sequence.room, sequence.done):
        text = f"sequence {seq} stores {sequence.done} tokens of {sequence.room}; its {entries} entries cover {covered}"
        raise RuleError("table", text, f"len(strategy.table[{seq}]) > {entries}")


def inside_the_pool(trial: Trial, sequences: list[Sequence], stops: list[int], slot_T: NDArray[np.int64]) -> None:
    """Every slot is one of the pool's."""
    if len(slot_T) and (slot_T.min() < 0 or slot_T.max() >= trial.shadow.slots):
        bad = int(np.argmax((slot_T < 0) | (slot_T >= trial.shadow.slots)))
        which = int(np.searchsorted(np.cumsum(stops), bad, side="right"))
        seq, position = sequences[which].seq, bad - sum(stops[:which])
        text = f"token {position} of sequence {seq} is at slot {slot_T[bad]}, of {trial.shadow.slots}"
        raise RuleError(
            "table", text, f"0 <= strategy.slots({seq}, 0, {position}, {position + 1})[0] < strategy.pools[0].slots"
        )


def all_hold(shadow: Shadow, sequences: list[Sequence], slot_N: NDArray[np.int64]) -> None:
    """Every stored token is where the table says, with the right prefix behind it; slot_N packs them all."""
    value_N = np.concatenate([sequence.value[: sequence.done] for sequence in sequences])
    if shadow.holds(slot_N, value_N).all():
        return
    begin = 0
    for sequence in sequences:
        holds(shadow, sequence, slot_N[begin : begin + sequence.done], sequence.value[: sequence.done])
        begin += sequence.done


def holds(shadow: Shadow, sequence: Sequence, slot_N: NDArray[np.int64], value_N: NDArray[np.int64]) -> None:
    """The tokens of one sequence, from its first on, are in these slots."""
    good_N = shadow.holds(slot_N, value_N)
    if good_N.all():
        return
    position = int(np.argmin(good_N))
    slot = int(slot_N[position])
    what = (
        "has no memory under it"
        if (shadow.pieces(slot_N[position : position + 1]) < 0).any()
        else "holds something else"
    )
    text = f"token {position} of sequence {sequence.seq} should be in slot {slot}, which {what}"
    raise RuleError(
        "live tokens", text, f"device.holds({sequence.seq}, {words(sequence.ids[: len(value_N)], sequence.space)})"
    )


def words(ids: list[int], space: int) -> str:
    return f"{ids}" + (f", space={space}" if space else "")


def room_is_nobody_elses(
    trial: Trial,
    sequences: list[Sequence],
    slot_T: NDArray[np.int64],
    live_T: NDArray[np.bool_],
    which_T: NDArray[np.int64],
    position_T: NDArray[np.int64],
) -> None:
    """What may be written without asking is mapped, and neither anybody's stored token nor anybody else's room."""
    shadow, room_T = trial.shadow, ~live_T
    piece_R = shadow.pieces(slot_T[room_T])
    if not len(piece_R):
        return
    number_R = np.arange(len(piece_R))
    last = np.full(len(shadow.content), -1, np.int64)
    last[piece_R] = number_R
    stored = np.zeros(len(shadow.content), bool)
    stored[shadow.pieces(slot_T[live_T])] = True
    if (piece_R >= 0).all() and (last[piece_R] == number_R).all() and not stored[piece_R].any():
        return
    owner_R, at_R = spread(shadow, which_T[room_T], piece_R), spread(shadow, position_T[room_T], piece_R)
    slot_R = spread(shadow, slot_T[room_T], piece_R)
    bad = int(np.argmax((piece_R < 0) | (last[piece_R] != number_R) | stored[piece_R]))
    seq, position, piece = sequences[int(owner_R[bad])].seq, int(at_R[bad]), piece_R[bad]
    where = f"token {position} of sequence {seq} would go to slot {slot_R[bad]}"
    mine = f"device.pieces(strategy.slots({seq}, 0, {position}, {position + 1}))"
    if piece < 0:
        raise RuleError("mapped", f"{where}, under which there is no memory", f"{mine}.min() >= 0")
    if stored[piece]:
        piece_L = shadow.pieces(slot_T[live_T])
        other = int(np.argmax(piece_L == piece))
        owner = sequences[int(spread(shadow, which_T[live_T], piece_L)[other])].seq
        at = int(spread(shadow, position_T[live_T], piece_L)[other])
        text = f"{where}, where token {at} of sequence {owner} is stored"
    else:
        owner, at = sequences[int(owner_R[last[piece]])].seq, int(at_R[last[piece]])
        text = f"{where}, and token {at} of sequence {owner} too"
    theirs = f"device.pieces(strategy.slots({owner}, 0, {at}, {at + 1}))"
    raise RuleError("written once", text, f"not np.intersect1d({mine}, {theirs}).size")


def spread(shadow: Shadow, value_N: NDArray[np.int64], piece: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(value_N, len(piece) // max(1, len(value_N)))


def sources_are_held(trial: Trial) -> None:
    """Before the drain, unless somebody left: the row that a copy reads is in no other room than that it is for.

    Of blocks this does not hold: who shares a part of one may write behind it as soon as the other has his copy.
    """
    strategy = trial.strategy
    copies = [move for move in strategy.moves if isinstance(move, Copy)] if strategy.block_size is None else []
    for sequence in trial.running.values() if copies else ():
        start, stop = sequence.issued, max(sequence.room, sequence.issued)
        slot_T = gather_from(strategy.table, [sequence.seq], [0], [stop], strategy.block_size)
        for move in copies:
            taken_T = (slot_T[start:] >= move.source) & (slot_T[start:] < move.source + move.tokens)
            if taken_T.any() and move.target not in slot_T[:start]:
                where = f"token {start + int(np.argmax(taken_T))} of sequence {sequence.seq} is to go there"
                raise RuleError("moves", f"{move} is not drained yet, and what it reads was given away: {where}")


def usage_adds_up(trial: Trial) -> None:
    """held + cached + free is what it was at the start; nothing is negative."""
    usage = trial.strategy.usage()
    total = usage.held + usage.cached + usage.free
    if total != trial.capacity:
        text = f"held + cached + free = {total}, was {trial.capacity} at the start: {usage}"
        raise RuleError("usage", text, f"sum(strategy.usage()[:3]) == {trial.capacity}")
    if min(usage[:5]) < 0 or usage.rounded > usage.held:
        raise RuleError("usage", f"a figure is out of range: {usage}", "min(strategy.usage()[:5]) >= 0")


def nothing_is_held(trial: Trial) -> None:
    """No sequence, no move: nothing is held."""
    usage = trial.strategy.usage()
    if usage.held:
        raise RuleError(
            "held", f"no sequence runs, but {usage.held} bytes are held: {usage}", "strategy.usage().held == 0"
        )


def held_is_what_tables_hold(trial: Trial) -> None:
    """held - rounded is the bytes of the distinct live table entries; of the rooms where sequences have rows."""
    strategy, usage = trial.strategy, trial.strategy.usage()
    held, size = usage.held - usage.rounded, strategy.memory.token_bytes
    if strategy.block_size is not None:
        table = strategy.table
        live = {entry for seq in table.row for entry in table[seq][table.start[seq] :].tolist()}
        expected, what = len(live) * strategy.block_size * size, f"{len(live)} distinct blocks are in the tables"
    else:
        said = [sequence.said for sequence in trial.running.values()]
        if None in said:
            return
        expected, what = rooms_bytes(trial, [room or 0 for room in said]), f"the rooms are {said} tokens"
    if held != expected:
        text = f"held - rounded = {held} bytes, but {what}, {expected} bytes: {usage}"
        raise RuleError("held", text, f"strategy.usage().held - strategy.usage().rounded == {expected}")


def rooms_bytes(trial: Trial, rooms: list[int]) -> int:
    """Bytes of the rooms of all sequences; page groups that lie under several rows count once."""
    strategy, shadow = trial.strategy, trial.shadow
    if not strategy.virtual or not shadow.aliased:
        return sum(rooms) * strategy.memory.token_bytes
    slot_T = gather_from(strategy.table, list(trial.running), [0] * len(rooms), rooms, strategy.block_size)
    return len(np.unique(shadow.pieces(slot_T))) * strategy.memory.token_bytes // shadow.per_token


def mapped_is_backed(trial: Trial) -> None:
    """usage().backed is the bytes that Map and Unmap have left mapped; a page group under several rows counts once."""
    strategy = trial.strategy
    backed = strategy.usage().backed
    if not strategy.virtual:
        return
    mapped = trial.shadow.mapped * strategy.memory.page_group_bytes
    if backed != mapped:
        raise RuleError(
            "backed", f"usage says {backed} bytes are mapped, {mapped} are", f"strategy.usage().backed == {mapped}"
        )


def a_launch_does_not_notice(shadow: Shadow, moves: list[Move], slot_T: NDArray[np.int64]) -> None:
    """Of moves beside a launch: no copy, and nothing is taken from under the slots that it writes or reads."""
    used = set(shadow.groups(slot_T)) if moves and shadow.strategy.virtual else set()
    for move in moves:
        if isinstance(move, Copy) or (isinstance(move, Unmap) and move.virtual in used):
            raise RuleError("ahead", f"ahead() asks for {move} beside a launch that it disturbs")

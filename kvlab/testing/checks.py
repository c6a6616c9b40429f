"""What must hold whenever the moves are carried out and no launch is in flight. Each rule is one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Copy, Drop, Map, Move, Strategy, Unmap
from kvlab.testing import accounts
from kvlab.testing.gather import gather_from
from kvlab.testing.places import Places, lay_out, packed_values, values
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence
from kvlab.testing.shadow import Shadow

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial


def everything(trial: Trial) -> None:
    """All of them."""
    usage = trial.strategy.usage()
    accounts.usage_adds_up(trial, usage)
    accounts.mapped_is_backed(trial, usage)
    accounts.host_is_bounded(trial)
    if not trial.running:
        accounts.nothing_is_held(usage)
        return
    accounts.held_is_what_tables_hold(trial, usage)
    sequences, laid = list(trial.running.values()), list[Places]()
    done = [sequence.done for sequence in sequences]
    for group in range(len(trial.strategy.groups)):
        for sequence in sequences:
            table_covers(trial.strategy, sequence, group)
        places = lay_out(trial, sequences, group)
        inside_the_pool(places)
        value_T = packed_values(sequences, group, places.starts, done)
        all_hold(places.shadow, sequences, group, places.starts, places.slot_T[places.live_T], value_T)
        laid.append(places)
    for shadow in trial.shadow.pools:
        room_is_nobody_elses(shadow, [places for places in laid if places.shadow is shadow])


def table_covers(strategy: Strategy, sequence: Sequence, group: int) -> None:
    """The table has an entry for every token of the room."""
    seq, need = sequence.seq, max(sequence.room, sequence.done)
    entries = strategy.tables[group].count.get(seq)
    covered = (entries or 0) * strategy.block_size if strategy.block_size else sequence.room
    if entries and covered >= need:
        return
    table = f"strategy.tables[{group}]"
    if entries is None:
        raise RuleError("table", f"sequence {seq} runs, but has no table", f"{seq} in {table}.row")
    text = f"sequence {seq} stores {sequence.done} tokens of {sequence.room}; its {entries} entries cover {covered}"
    raise RuleError("table", text, f"len({table}[{seq}]) > {entries}")


def inside_the_pool(places: Places) -> None:
    """Every slot is one of the pool's."""
    slot_T, slots = places.slot_T, places.shadow.slots
    if len(slot_T) and (slot_T.min() < 0 or slot_T.max() >= slots):
        bad = int(np.argmax((slot_T < 0) | (slot_T >= slots)))
        seq, position = places.owner(bad)
        text = f"token {position} of sequence {seq} is at slot {slot_T[bad]}, of {slots}"
        found = f"strategy.slots({seq}, {places.group}, {position}, {position + 1})[0]"
        raise RuleError("table", text, f"0 <= {found} < strategy.pools[{places.shadow.pool}].slots")


def all_hold(
    shadow: Shadow,
    sequences: list[Sequence],
    group: int,
    starts: list[int],
    slot_N: NDArray[np.int64],
    value_N: NDArray[np.int64],
) -> None:
    """Every stored token is where the table says, with the right prefix behind it; arrays pack those from `starts`."""
    if shadow.holds(slot_N, value_N).all():
        return
    begin = 0
    for sequence, start in zip(sequences, starts, strict=True):
        end = begin + max(0, sequence.done - start)
        holds(shadow, sequence, group, start, slot_N[begin:end])
        begin = end


def holds(shadow: Shadow, sequence: Sequence, group: int, start: int, slot_N: NDArray[np.int64]) -> None:
    """The tokens of one sequence, from `start` on, are in these slots."""
    stop = start + len(slot_N)
    good_N = shadow.holds(slot_N, values(sequence, group, start, stop))
    if good_N.all():
        return
    at = int(np.argmin(good_N))
    what = "has no memory under it" if (shadow.pieces(slot_N[at : at + 1]) < 0).any() else "holds something else"
    text = f"token {start + at} of sequence {sequence.seq} should be in slot {int(slot_N[at])}, which {what}"
    asserted = f"device.holds({sequence.seq}, {words(sequence.ids[:stop], sequence.space)})"
    raise RuleError("live tokens", text + (f" (group {group})" if group else ""), asserted)


def words(ids: list[int], space: int) -> str:
    return f"{ids}" + (f", space={space}" if space else "")


def room_is_nobody_elses(shadow: Shadow, laid: list[Places]) -> None:
    """What may be written without asking is mapped, and neither anybody's stored token nor anybody else's room.

    `laid`: the groups of layers that share the pool.
    """
    room_R, live_N = packed(laid, live=False), packed(laid, live=True)
    if not len(room_R):
        return
    piece_R = shadow.pieces(room_R)
    taken = np.zeros(len(shadow.content), np.int8)
    taken[piece_R] = 1  # once each, if they are all different
    alone = np.count_nonzero(taken) == len(piece_R)
    taken[shadow.pieces(live_N)] = 0
    if alone and piece_R.min() >= 0 and np.count_nonzero(taken) == len(piece_R):
        return
    blame(shadow, laid, piece_R)


def blame(shadow: Shadow, laid: list[Places], piece_R: NDArray[np.int64]) -> NoReturn:
    """Say of the first of these pieces, which may not be written without asking, why."""
    last, stored = np.full(len(shadow.content), -1, np.int64), np.zeros(len(shadow.content), bool)
    last[piece_R] = number_R = np.arange(len(piece_R))
    live_R = shadow.pieces(packed(laid, live=True))
    stored[live_R] = True
    bad = int(np.argmax((piece_R < 0) | (last[piece_R] != number_R) | stored[piece_R]))
    piece, mine = piece_R[bad], Found.of(shadow, laid, bad, live=False)
    where = f"token {mine.position} of sequence {mine.seq} would go to slot {mine.slot}"
    if piece < 0:
        raise RuleError("mapped", f"{where}, under which there is no memory", f"{mine.words()}.min() >= 0")
    if stored[piece]:
        other = Found.of(shadow, laid, int(np.argmax(live_R == piece)), live=True)
        text = f"{where}, where token {other.position} of sequence {other.seq} is stored"
    else:
        other = Found.of(shadow, laid, int(last[piece]), live=False)
        text = f"{where}, and token {other.position} of sequence {other.seq} too"
    raise RuleError("written once", text, f"not np.intersect1d({mine.words()}, {other.words()}).size")


def packed(laid: list[Places], live: bool) -> NDArray[np.int64]:
    """The slots of all groups that are live, or not."""
    slots = [places.slot_T[places.live_T if live else ~places.live_T] for places in laid]
    return slots[0] if len(slots) == 1 else np.concatenate(slots)


class Found(NamedTuple):
    """Whose a piece is."""

    seq: int
    group: int
    pool: int
    position: int
    slot: int

    @classmethod
    def of(cls, shadow: Shadow, laid: list[Places], piece: int, live: bool) -> Found:
        """Number `piece` of those of all groups, live ones or not."""
        token = piece // shadow.per_token
        for places in laid:
            chosen = np.flatnonzero(places.live_T == live)
            if token < len(chosen):
                at = int(chosen[token])
                seq, position = places.owner(at)
                return cls(seq, places.group, shadow.pool, position, int(places.slot_T[at]))
            token -= len(chosen)
        raise IndexError(piece)

    def words(self) -> str:
        slots = f"strategy.slots({self.seq}, {self.group}, {self.position}, {self.position + 1})"
        return f"device.pieces({slots})" if not self.pool else f"device.pools[{self.pool}].pieces({slots})"


def sources_are_held(trial: Trial) -> None:
    """Before the drain, unless somebody left: the row that a copy reads is in no other room than that it is for.

    Whoever moved away from there himself may have it in his longer row, though a fork's copy reads it too.
    Of blocks this does not hold: who shares a part of one may write behind it as soon as the other has his copy.
    """
    strategy = trial.strategy
    copies = [move for move in strategy.moves if isinstance(move, Copy)] if strategy.block_size is None else []
    for sequence in trial.running.values() if copies else ():
        start, stop = sequence.issued, max(sequence.room, sequence.issued)
        slot_T = gather_from(strategy.table, [sequence.seq], [0], [stop], strategy.block_size)
        for move in copies:
            taken_T = (slot_T[start:] >= move.source) & (slot_T[start:] < move.source + move.tokens)
            targets = [other.target for other in copies if other.source == move.source]  # its own, and its forks'
            if taken_T.any() and not np.isin(targets, slot_T[:start]).any():
                where = f"token {start + int(np.argmax(taken_T))} of sequence {sequence.seq} is to go there"
                raise RuleError("moves", f"{move} is not drained yet, and what it reads was given away: {where}")


def a_launch_does_not_notice(shadow: Shadow, moves: list[Move], slot_T: NDArray[np.int64]) -> None:
    """Of moves beside a launch: no copy, and nothing is taken from under the slots that it writes or reads."""
    used = set(shadow.groups(slot_T)) if moves and shadow.strategy.virtual else set()
    for move in moves:
        copies = not isinstance(move, Map | Unmap | Drop)
        if copies or (isinstance(move, Unmap) and move.virtual in used):
            raise RuleError("ahead", f"ahead() asks for {move} beside a launch that it disturbs")

"""What a strategy may get wrong when it swaps by the default's rules: the contract catches each within a few lives."""

from __future__ import annotations

import pytest

from kvlab.moves import SwapIn, SwapOut
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Grant, Strategy
from kvlab.testing import LifeError, lives


class Sound(Contiguous):
    """The default's."""


class KeepsItsRow(Contiguous):
    def swap_out(self, seq, length):
        release, self.release = self.release, lambda seq: None
        done = super().swap_out(seq, length)
        self.release = release
        return done


class CopiesNothing(Contiguous):
    def swap_out(self, seq, length):
        done = super().swap_out(seq, length)
        self.moves = [move for move in self.moves if not isinstance(move, SwapOut)]
        return done


class BringsTooLittle(VAttention):
    def swap_in(self, arrival):
        grant = super().swap_in(arrival)
        for index, move in enumerate(self.moves):
            if isinstance(move, SwapIn) and move.tokens > 1:
                self.moves[index] = move._replace(tokens=move.tokens - 1)
        return grant


class CopiesAfterTheUnmap(VAttention):
    """The memory is gone from under the row when the copy reads it."""

    def swap_out(self, seq, length):
        done = super().swap_out(seq, length)
        self.moves.sort(key=lambda move: isinstance(move, SwapOut))
        return done


class TakesBeforeItRefuses(Contiguous):
    def swap_out(self, seq, length):
        self.host.take(min(1, self.host.free))
        return super().swap_out(seq, length)


class ForgetsOnlyTheName(Contiguous):
    def forget(self, seq):
        del self.host.kept[seq]


class SaysThatNothingIsHeld(Contiguous):
    def host_held(self):
        return 0


class TakesMoreThanThereIs(Contiguous):
    def __init__(self, memory):
        super().__init__(memory)
        self.host.blocks += 4


class AsksToComputeAgain(Contiguous):
    def swap_in(self, arrival):
        grant = super().swap_in(arrival)
        return grant and Grant(arrival.length - 1, grant.room)


class NeverTakesBack(Contiguous):
    def swap_in(self, arrival):
        self.host.kept[arrival.seq]
        return


FAULTY = (
    KeepsItsRow, CopiesNothing, BringsTooLittle, CopiesAfterTheUnmap, TakesBeforeItRefuses, ForgetsOnlyTheName,
    SaysThatNothingIsHeld, TakesMoreThanThereIs, AsksToComputeAgain, NeverTakesBack,
)  # fmt: skip


@pytest.mark.parametrize("cls", FAULTY)
def test_a_faulty_swap_is_caught(cls: type[Strategy]) -> None:
    with pytest.raises(LifeError):
        lives(lambda setting: cls(setting.memory), range(40), 60)


def test_the_default_swaps_and_passes() -> None:
    seen = lives(lambda setting: Sound(setting.memory), range(24), 100).seen
    assert seen["swapped in"] > 10
    assert seen["swap_out refused"] > 0
    assert seen["forgotten on the host"] > 0

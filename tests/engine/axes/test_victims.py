"""Who gives way."""

from __future__ import annotations

import pytest

from kvlab.engine.axes import LeastOutput, MostBlocks, Newest, Priority


@pytest.mark.parametrize("asker", [0, 1, 2])
def test_the_newest_gives_way_even_to_itself(running, asker):
    assert Newest().choose(running((9, 4, 20, 12), (8, 4, 20, 12), (7, 4, 20, 12)), asker) == 2


def test_who_has_generated_least_gives_way(running):
    assert LeastOutput().choose(running((9, 4, 20, 12), (6, 4, 20, 8), (8, 4, 20, 8)), 0) == 1


def test_of_those_who_generated_equally_little_the_longer_prompt_goes(running):
    assert LeastOutput().choose(running((12, 10, 20, 12), (22, 20, 30, 24), (12, 10, 20, 12)), 0) == 1


def test_the_lowest_priority_gives_way_and_of_equals_the_newest(running):
    rows = [(9, 4, 20, 12)] * 4
    assert Priority().choose(running(*rows, priority=[1, 0, 0, 5]), 0) == 2


def test_the_largest_room_gives_way_and_of_equals_the_newest(running):
    assert MostBlocks().choose(running((9, 4, 20, 12), (30, 4, 90, 32), (30, 4, 90, 32), (9, 4, 20, 12)), 0) == 2

"""Nothing behind a window reaches an engine, whose kernels let every query read all tokens."""

from __future__ import annotations

import pytest

from kvlab.build import build_strategy
from kvlab.errors import UsageError
from kvlab.strategies.paged import Paged
from kvlab.strategy import LayerGroup, Pool

CONFIG = {
    "max_len": 64,
    "engine": {"max_seqs": 4, "chunk": None},
    "strategy": {"_target_": "somebody.Windowed", "name": "windowed", "block_size": 8},
}
ALL = (0, 1)
GROUPS = {
    "one behind a window": (LayerGroup(ALL, window=16),),
    "one in two, and one without": (LayerGroup(ALL[:1], window=16), LayerGroup(ALL[1:])),
    "two without": (LayerGroup(ALL[:1]), LayerGroup(ALL[1:])),
}


def built(monkeypatch, **facts):
    class Windowed(Paged):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            vars(self).update(facts)

    monkeypatch.setattr("kvlab.build.class_at", lambda *_: Windowed)
    return build_strategy(CONFIG, 32, len(ALL), 1 << 16)


@pytest.mark.parametrize("groups", GROUPS)
def test_a_strategy_with_windows_or_groups_is_refused(monkeypatch, groups):
    """Its old tokens were read behind their window, or one group's table for the layers of all."""
    with pytest.raises(UsageError, match=r"strategy=windowed: it has .*; allowed in a run is one group of all layers"):
        built(monkeypatch, groups=GROUPS[groups])


def test_a_pool_for_each_group_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="allowed in a run is one group"):
        built(monkeypatch, pools=(Pool(8, 16), Pool(8, 16)))


def test_one_group_without_is_not(monkeypatch):
    assert built(monkeypatch, groups=(LayerGroup(ALL),)).groups[0].window is None

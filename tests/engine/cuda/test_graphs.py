"""Recorded decode: which bucket a launch goes to, what padding looks like, and what comes back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.engine.cuda.graphs import LARGEST, DecodeGraphs, buckets, rounded
from kvlab.engine.cuda.inputs import NOWHERE, Inputs
from kvlab.kernels.gpu.geometry import Blocks, Rows


def test_buckets():
    assert buckets(1) == [1]
    assert buckets(5) == [1, 2, 4, 5]
    assert buckets(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert buckets(256)[-3:] == [240, 248, 256]
    assert buckets(10**6)[-1] == LARGEST
    for most in (1, 2, 7, 100, 300):
        assert buckets(most) == sorted(set(buckets(most)))
        assert buckets(most)[-1] == most


def test_the_longest_is_rounded_to_powers_of_two():
    assert [rounded(length) for length in (1, 256, 257, 512, 5000)] == [256, 256, 512, 512, 8192]


class Recording:
    """A model that answers a token with itself plus its slot, and notes what it was shown."""

    def __init__(self, platform, most, table_RP=None, block_size=None):
        self.inputs = Inputs(platform, most, table_RP, block_size)
        self.seen = []
        self.graphs = DecodeGraphs(platform, self.inputs, most, self.compute, self.splits)

    def compute(self, bucket, longest):
        device = {name: x[:bucket] for name, x in self.inputs.device.items()}
        self.seen.append((bucket, longest))
        return torch.stack((device["ids"] + device["slot"], device["length"].long()))

    def splits(self, bucket, longest):
        return max(1, longest // 256 // bucket)


@pytest.fixture
def recording(new_platform):
    return Recording(new_platform(), 8)


def replay(graphs, count, first=10):
    ids_B, position_B = np.arange(first, first + count), np.arange(count) + 5
    answer_2B = graphs.replay(ids_B.astype(np.int32), position_B, 100 * np.arange(count), np.zeros(count, np.int64))
    return answer_2B.cpu().tolist()


def test_a_launch_is_padded_up_to_its_bucket(recording):
    assert replay(recording.graphs, 3) == [[10, 111, 212], [6, 7, 8]]
    assert {bucket for bucket, _ in recording.seen} == {4}
    there = {name: x[:4].tolist() for name, x in recording.inputs.device.items()}
    assert there["slot"] == [0, 100, 200, NOWHERE]
    assert there["length"] == [6, 7, 8, 0]
    assert (there["ids"][3], there["position"][3], there["place"][3]) == (0, 0, 0)


def test_what_a_larger_launch_left_does_not_reach_a_smaller_one(recording):
    replay(recording.graphs, 8, first=500)
    assert replay(recording.graphs, 3) == [[10, 111, 212], [6, 7, 8]]
    assert recording.inputs.device["length"][:4].tolist() == [6, 7, 8, 0]


def test_a_graph_is_recorded_once_for_a_bucket_and_a_number_of_pieces(recording):
    recording.graphs.capture_all(1024)
    keys = set(recording.graphs.graphs)
    assert keys == {(8, 1), (4, 1), (2, 1), (2, 2), (1, 1), (1, 2), (1, 4)}
    for count in range(1, 9):
        replay(recording.graphs, count)
    assert set(recording.graphs.graphs) == keys
    assert recording.graphs.replays == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="nobody looks into a device while it records")
def test_recording_sees_padding_alone(new_platform):
    recording, shown = Recording(new_platform(), 4), []
    plain = recording.compute

    def watched(bucket, longest):
        shown.append(recording.inputs.device["slot"][:bucket].tolist())
        return plain(bucket, longest)

    recording.graphs.compute = watched
    replay(recording.graphs, 4)
    shown.clear()
    recording.graphs.graphs.clear()
    recording.graphs.capture_all(300)
    assert shown
    assert {slot for slots in shown for slot in slots} == {NOWHERE}


@pytest.mark.parametrize("paged", [False, True])
def test_the_view_of_a_bucket(paged, new_platform):
    platform = new_platform()
    table_RP = torch.zeros(4, 6, dtype=torch.int32, device=platform.device) if paged else None
    inputs = Inputs(platform, 4, table_RP, 16 if paged else None)
    inputs.fill(4, np.array([1, 2]), np.array([3, 8]), np.array([33, 44]), np.array([3, 1]))
    view = inputs.view(4, 512)
    sequences, longest, most = view.decode
    assert (view.prefill, longest, most) == (None, 512, 1)
    assert isinstance(sequences, Blocks if paged else Rows)
    assert sequences[1 if paged else 0].tolist() == [3, 1, 0, 0]
    assert sequences.length_B.tolist() == [4, 9, 0, 0]
    assert sequences.query_B.tolist() == [0, 1, 2, 3]
    assert view.slot_T.tolist() == [33, 44, NOWHERE, NOWHERE]

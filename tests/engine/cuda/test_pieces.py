"""Large launches in pieces: together they are the launch."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine.cuda.pieces import pieces
from kvlab.engine.launch import Launch, packed


def random_launch(rng):
    count = int(rng.integers(1, 9))
    start_B = rng.integers(0, 50, count)
    stop_B = start_B + rng.choice([1, 1, 3, 20, 40], count)
    total = int((stop_B - start_B).sum())
    samples_B, ids_T = rng.random(count) < 0.7, rng.integers(0, 999, total).astype(np.int32)
    return Launch(np.arange(count) + 7, rng.permutation(count), start_B, stop_B, samples_B, ids_T)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_the_launch(seed):
    rng = np.random.default_rng(seed)
    launch, most = random_launch(rng), int(rng.integers(1, 60))
    cut = list(pieces(launch, most))
    assert all(len(piece.ids_T) <= most for piece in cut)
    assert all((piece.stop_B > piece.start_B).all() for piece in cut)
    assert len(cut) == -(-len(launch.ids_T) // most)
    tokens = [
        np.concatenate([packed(getattr(x, of), x.start_B, x.stop_B)[0] for x in cut]) for of in ("lane_B", "row_B")
    ]
    positions = np.concatenate([packed(x.lane_B, x.start_B, x.stop_B)[1] for x in cut])
    lanes, expected = packed(launch.lane_B, launch.start_B, launch.stop_B)
    rows, _ = packed(launch.row_B, launch.start_B, launch.stop_B)
    assert [*map(np.ndarray.tolist, tokens)] == [lanes.tolist(), rows.tolist()]
    assert positions.tolist() == expected.tolist()
    assert np.concatenate([x.ids_T for x in cut]).tolist() == launch.ids_T.tolist()
    sampling = np.concatenate([x.lane_B[x.samples_B] for x in cut])
    assert sampling.tolist() == launch.lane_B[launch.samples_B].tolist(), "each once, in order, with its last token"


def test_a_small_launch_is_one_piece():
    launch = random_launch(np.random.default_rng(0))
    (whole,) = pieces(launch, 10**6)
    assert whole is launch

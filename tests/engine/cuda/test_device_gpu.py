"""What only a device can show: recording, marks in its stream, and what its driver counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.engine.cuda.platform import open_platform
from kvlab.record.summary import output_digest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def platform():
    return open_platform("cuda")


def test_what_is_sent_arrives_and_what_is_read_is_done(platform):
    sent = platform.send(np.arange(1000))
    torch.cuda._sleep(50_000_000)
    doubled = sent * 2
    assert platform.read(doubled).tolist() == (2 * np.arange(1000)).tolist()


def test_a_graph_reads_its_inputs_anew(platform):
    here, there = platform.buffer(80), torch.zeros(80, dtype=torch.uint8, device=platform.device)
    numbers = there.view(torch.int64)
    graph = platform.capture(lambda: numbers * 3, platform.graph_memory())
    for first in (1, 7):
        here.numpy().view(np.int64)[:] = np.arange(first, first + 10)
        platform.send_into(there, here)
        graph.replay()
        assert platform.read(graph.result).tolist() == [3 * n for n in range(first, first + 10)]


def test_marks_measure_the_device(platform):
    begin = platform.mark()
    torch.cuda._sleep(100_000_000)
    end = platform.mark()
    torch.cuda.synchronize()
    assert platform.between_ns(begin, end) > 1_000_000


def test_the_device_says_what_it_is(platform):
    told = platform.describe()
    assert told["name"] == torch.cuda.get_device_name()
    assert told["total_bytes"] > 1 << 30
    assert 0 < platform.used_bytes() < platform.total_bytes


@pytest.mark.parametrize("name", ["contiguous", "paged", "vattention", "vattention_sliced"])
def test_graphs_change_no_token(name, serve, config, work):
    requests = work(12, seed=8)
    with_graphs, without = (serve(config(name, cuda_graphs=on), requests) for on in (True, False))
    assert with_graphs.told["graph_replays"] > 0
    assert output_digest(with_graphs.scheduler.tally.ended) == output_digest(without.scheduler.tally.ended)


def test_committed_is_what_the_driver_has_taken(serve, config, work, platform):
    """To within what the run takes beside the pool."""
    torch.cuda.empty_cache()
    before = platform.used_bytes()
    engine = serve(config("vattention", pool_bytes=64 * (8 << 20), cuda_graphs=False), work(4, seed=9))
    peak = max(row.os_committed for row in engine.recorder.rows)
    assert 0 < peak <= engine.told["used_bytes"] - before

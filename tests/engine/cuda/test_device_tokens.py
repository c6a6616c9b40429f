"""Whatever the strategy, the device's engine says what the CPU's says, with preemption, copies and graphs."""

from __future__ import annotations

import gc

import pytest
import torch

from kvlab.record.summary import output_digest

QUICK = ("paged", "vattention")
OTHERS = ("contiguous", "vattention_ahead", "vattention_sliced", "growing", "radix", "token_pool")
STANDIN = not torch.cuda.is_available()


def said(engine):
    assert all(sequence.outcome == "finished" for sequence in engine.scheduler.tally.ended)
    return output_digest(engine.scheduler.tally.ended)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_the_same_tokens_as_on_the_cpu(name, serve, config, work):
    """Few requests; each strategy decodes through graphs, and prompts without them."""
    requests = work(3, seed=1, longest=4, alike=5 if name == "radix" else 0)
    engine = serve(config(name, max_seqs=2), requests)
    assert said(engine) == said(serve(config(name, max_seqs=2), requests, on_cpu=True))
    told = engine.told
    assert told["cuda_graphs"]
    assert 0 < told["graph_replays"] < engine.recorder.totals.launches
    if name == "radix":
        assert engine.scheduler.tally.hit_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
@pytest.mark.parametrize("changes", [{}, {"chunk": 3}, {"cuda_graphs": False}], ids=["plain", "chunks", "no graphs"])
def test_the_same_tokens_with_preemption(name, changes, serve, config, work):
    requests = work(6, seed=2, longest=22, alike=5 if name == "radix" else 0)
    virtual = name.startswith("vattention")
    tokens = 48 if virtual else 96 if name == "growing" else 40  # a row that moves is there twice
    cfg = config(name, **changes, **({} if virtual and not STANDIN else {"pool_tokens": tokens}))
    engine = serve(cfg, requests)
    assert said(engine) == said(serve(cfg, requests, on_cpu=True))
    if name != "contiguous" and (STANDIN or not virtual):  # pages of a device hold all
        assert engine.scheduler.tally.preemptions > 0
    assert (engine.told["graph_replays"] > 0) == changes.get("cuda_graphs", True)


@pytest.mark.slow
def test_the_same_tokens_at_a_temperature(serve, config, work):
    """Such launches go without graphs: the noise comes from the host."""
    requests = work(4, seed=3, longest=5, temperature=0.8)
    engine = serve(config("paged"), requests)
    assert said(engine) == said(serve(config("paged"), requests, on_cpu=True))
    assert said(engine) != said(serve(config("paged"), work(4, seed=3, longest=5)))
    assert engine.told["graph_replays"] == 0


@pytest.mark.skipif(not STANDIN, reason="torch's FlashAttention-2 takes no float32")
def test_another_attention_goes_without_graphs_and_says_so(serve, config, work):
    requests = work(3, seed=4, longest=4)
    cfg = config("paged", attention={"_target_": "kvlab.engine.attentions.sdpa.Sdpa"})
    engine = serve(cfg, requests)
    assert said(engine) == said(serve(config("paged"), requests, on_cpu=True))
    assert not engine.told["cuda_graphs"]
    assert engine.executor.notice() == (
        "CUDA graphs are off: this attention plans each launch on the host; attention=kvlab does not"
    )


def test_a_prompt_is_computed_in_pieces(serve, config, work, monkeypatch):
    """Pieces of at most 7 tokens, which cut prompts in the middle."""
    cut = []
    from kvlab.engine.cuda import executor
    from kvlab.engine.cuda.pieces import pieces

    def small(launch):
        cut.append(list(pieces(launch, 7)))
        return cut[-1]

    monkeypatch.setattr(executor, "pieces", small)
    requests = work(3, seed=5, longest=2)
    engine = serve(config("paged", cuda_graphs=False), requests)
    assert said(engine) == said(serve(config("paged"), requests, on_cpu=True))
    assert max(map(len, cut)) > 1


@pytest.mark.skipif(not STANDIN, reason="what the emulator counts")
def test_nothing_is_left_on_the_device(serve, config, work):
    engine = serve(config("vattention_ahead", cuda_graphs=False), work(2, seed=6, longest=2))
    driver = engine.platform.driver
    assert driver.calls["cuMemMap"] > 0
    del engine
    gc.collect()
    assert not driver.dead
    assert not any(driver.live().values()), driver.live()


@pytest.mark.skipif(not STANDIN, reason="torch's FlashAttention-2 takes no float32")
def test_copies_that_follow_one_another_are_one_launch(serve, config, work, monkeypatch):
    """Rows that move, several in a step, in all layers at once; the CPU copies layer by layer."""
    from kvlab.engine.cuda import executor

    sizes, plain = [], executor.copy_layers

    def counted(layers, source_N, target_N, tokens_N):
        sizes.append((len(layers.tensors), len(source_N)))
        plain(layers, source_N, target_N, tokens_N)

    monkeypatch.setattr(executor, "copy_layers", counted)
    requests = work(6, seed=2, longest=16)
    cfg = config("growing", attention={"_target_": "kvlab.engine.attentions.sdpa.Sdpa"})
    assert said(serve(cfg, requests)) == said(serve(cfg, requests, on_cpu=True))
    assert {tensors for tensors, _ in sizes} == {4}, "keys and values of two layers"
    assert max(runs for _, runs in sizes) > 1

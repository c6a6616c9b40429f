"""`kvlab bench kernels`: what it measures and says, apart from how long it takes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from kvlab.bench import kernels, pages
from kvlab.bench.dense import DenseSdpa
from kvlab.bench.kernels import measure
from kvlab.bench.moves import Moves, moves_on
from kvlab.bench.pools import Attention, Plan, Shape, needed_bytes
from kvlab.bench.timing import take_turns
from kvlab.engine.attentions.sdpa import Sdpa
from kvlab.engine.kernels import Kvlab
from kvlab.errors import UsageError
from kvlab.harness import bench_kernels
from kvlab.harness.bench_kernels import parse
from kvlab.harness.cli import main
from kvlab.kernels.compiler import CompileError

SMALL = ("batch=3", "length=20", "head_dim=16", "dtype=float32", "block_sizes=1,16")
SHAPE = Shape(batch=3, length=20, q_heads=4, kv_heads=2, head_dim=16, dtype="float32")


class Clock:
    """A second for each unit of work that the test does while it runs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self, work):
        begin = self.now
        work()
        return self.now - begin


def steady(work):
    """Whatever it is takes a second."""
    work()
    return 1.0


@pytest.fixture(autouse=True)
def _small(monkeypatch, threads):
    monkeypatch.setattr(bench_kernels, "COLD_BYTES", {"cpu": 2**16})
    monkeypatch.setattr(bench_kernels, "LEAST_S", 1e-6)


def plan(attentions, ops=("decode",), block_sizes=(16,), clock=None, moves=None):
    clock = clock or Clock()
    return Plan("cpu", attentions, moves or moves_on("cpu"), ops, block_sizes, clock, 3, 1e-6, 2**16)


def test_calls_take_turns_and_a_sample_lasts_long_enough():
    clock, order = Clock(), []

    def taking(name, seconds):
        def work():
            order.append(name)
            clock.now += seconds

        return work, 2

    spreads = take_turns([taking("a", 1.0), taking("b", 4.0)], clock, repeats=2, least_s=3.0)
    assert [spread.median for spread in spreads] == [0.5, 2.0]
    assert order == ["a", "a", "b", "b", *["a", "a", "a", "b"] * 2]


def test_the_median_and_the_extremes_are_those_of_the_samples():
    clock, seconds = Clock(), iter([1.0, 1.0, 9.0, 2.0, 3.0])

    def work():
        clock.now += next(seconds)

    assert take_turns([(work, 1)], clock, repeats=3, least_s=1.0) == [(3.0, 2.0, 9.0)]


def test_rates_follow_from_times_and_bytes(monkeypatch):
    """A layer's keys and values in the time of one call; the share is of what reading took in the same run."""
    clock = Clock()

    class Second(Kvlab):
        def attend(self, *arguments):
            clock.now += 1.0
            return super().attend(*arguments)

    def reading(x):
        clock.now += 0.5

    monkeypatch.setattr(kernels, "stream", reading)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, source: setattr(clock, "now", clock.now + 2.0))
    read, copied, rows, blocks = measure(SHAPE, plan({"kvlab": Attention(Second())}, clock=clock))
    kv_bytes = 2 * 3 * 20 * 2 * 16 * 4
    assert (rows["geometry"], rows["block_size"], blocks["geometry"], blocks["block_size"]) == (
        "rows",
        None,
        "blocks",
        16,
    )
    assert rows["us_low"] == rows["us_median"] == rows["us_high"] == 1e6
    assert rows["gb_per_s"] == round(kv_bytes / 1e9, 3)
    assert read["us_median"] == 0.5e6
    assert copied["us_median"] == 2e6
    assert rows["share_of_bandwidth"] == pytest.approx(kv_bytes / (2**16 / 0.5), abs=1e-4)


def test_no_pass_stays_in_a_cache():
    """As many layers as make cold_bytes, each called once in a pass."""
    seen = []

    class Noting(Kvlab):
        def attend(self, q_TQD, k_SHD, *rest):
            seen.append(k_SHD.data_ptr())
            return super().attend(q_TQD, k_SHD, *rest)

    measure(SHAPE, plan({"kvlab": Attention(Noting())}, block_sizes=(), clock=steady))
    assert len(set(seen)) == -(-(2**16) // SHAPE.kv_bytes) > 1


@pytest.mark.parametrize("op", ["decode", "prefill"])
def test_a_kernel_that_computes_something_else_is_not_timed(op):
    class Wrong(Sdpa):
        def attend(self, q_TQD, k_SHD, v_SHD, view, scale):
            return super().attend(q_TQD, k_SHD, v_SHD, view, scale * 1.3)

    with pytest.raises(RuntimeError, match=f"wrong, {op}, block size None, sequence 0: off by"):
        measure(SHAPE, plan({"wrong": Attention(Wrong())}, ops=(op,)))


def test_moves_write_a_token_of_each_sequence_and_copy_half_of_the_slots():
    written, copied = [], []
    noting = Moves(
        lambda k_SHD, v_SHD, slot_T, *tokens: written.append(slot_T.tolist()),
        lambda layers: lambda source_N, target_N, tokens: copied.append((source_N, target_N, tokens)),
    )
    rows = measure(SHAPE, plan({}, ops=("append", "copy"), clock=steady, moves=noting))
    assert [row["op"] for row in rows] == ["read", "copy memory", "append", "copy"]
    assert written[0] == [19, 39, 59]
    source_N, target_N, tokens = copied[0]
    assert sorted([*source_N, *target_N]) == list(range(0, 96, tokens))


def test_the_cpu_copies_what_it_says():
    k_SHD, v_SHD = (torch.randn(64, 2, 4) for _ in "kv")
    before = k_SHD.clone()
    moves_on("cpu").copy_in([(k_SHD, v_SHD)])(np.array([0, 32]), np.array([16, 48]), 16)
    assert torch.equal(k_SHD[16:32], before[:16])
    assert torch.equal(k_SHD[48:], before[32:48])


def test_a_table_and_a_last_line_of_json(capsys):
    assert main(["bench", "kernels", *SMALL, "ops=decode,prefill,append,copy", "--repeats", "2"]) == 0
    text = capsys.readouterr().out
    *table, last = text.strip().splitlines()
    found = json.loads(last)
    assert f"`{found['command']}`" in text
    assert found["command"].startswith("kvlab bench kernels batch=3 length=20")
    assert found["clock"] == "CPU time, 1 thread"
    attends = [(row["op"], row["attention"], row["block_size"]) for row in found["rows"] if row["attention"]]
    expected = [
        (op, name, size) for op in ("decode", "prefill") for size in (None, 1, 16) for name in ("kvlab", "sdpa")
    ]
    expected.insert(2, ("decode", "sdpa_dense", None))
    assert attends == expected
    assert sum(line.startswith("| float32") for line in table) == len(found["rows"]) == 2 + 13 + 2
    assert all(row["us_low"] <= row["us_median"] <= row["us_high"] for row in found["rows"])


def test_head_major_leaves_out_what_does_not_know_it(capsys):
    assert main(["bench", "kernels", *SMALL, "layout=head_major", "--repeats", "1"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text.splitlines()[-1])
    assert (found["layout"], found["left_out"]) == ("head_major", ["sdpa_dense (it takes layout=token_major)"])
    assert "All in 4k pages, head_major." in text
    assert {row["attention"] for row in found["rows"]} == {None, "kvlab", "sdpa"}


def test_the_pools_lie_as_the_plan_says():
    seen = []

    class Noting(Kvlab):
        def attend(self, q_TQD, k_pool, *rest):
            seen.append(k_pool)
            return super().attend(q_TQD, k_pool, *rest)

    plan_ = dataclasses.replace(plan({"kvlab": Attention(Noting())}, clock=steady), tile=16, pages="4k")
    measure(SHAPE, plan_)
    assert {tuple(k_pool.shape) for k_pool in seen} == {(96 // 16, 2, 16, 16)}
    assert min(k_pool.data_ptr() for k_pool in seen) % pages.HUGE_BYTES == 0, "small ones lie side by side"
    large = SHAPE._replace(length=20_000)
    measure(large, plan_)
    assert all(k_pool.data_ptr() % pages.HUGE_BYTES == 0 for k_pool in seen if k_pool.numel() > large.length)


def test_without_a_compiler_torch_reads(monkeypatch):
    def none(x):
        raise CompileError("no C compiler")

    monkeypatch.setattr(kernels, "stream", none)
    assert measure(SHAPE, plan({}, clock=steady))[0]["kernel"] == "vector_norm"


def test_dense_attention_decodes_rows_alone():
    rows = measure(SHAPE, plan({"dense": Attention(DenseSdpa(), rows_only=True)}, ("decode", "prefill"), clock=steady))
    assert [(row["op"], row["block_size"]) for row in rows[2:]] == [("decode", None)]


def test_huge_pages_that_a_machine_lacks_are_refused(monkeypatch, tmp_path, capsys):
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    monkeypatch.setattr(pages, "_SETTING", tmp_path / "enabled")
    assert main(["bench", "kernels", *SMALL, "pages=thp"]) == 2
    assert "pages=thp: this machine has no transparent huge pages; allowed here is 4k" in capsys.readouterr().err


def test_only_json_and_the_table_in_a_file(capsys, tmp_path):
    out = tmp_path / "table.md"
    assert main(["bench", "kernels", *SMALL, "attention=sdpa", "--repeats", "1", "--json", "--out", str(out)]) == 0
    (line,) = capsys.readouterr().out.strip().splitlines()
    assert {row["attention"] for row in json.loads(line)["rows"]} == {None, "sdpa"}
    assert "| sdpa " in out.read_text()


def test_help_names_every_override_and_its_default(capsys):
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    for name, value in bench_kernels.DEFAULTS["cpu"].items():
        assert f"{name}={value}" in text


def test_batches_and_lengths_go_in_pairs():
    shapes = bench_kernels._shapes(parse(["device=cuda"]))
    assert [(shape.batch, shape.length) for shape in shapes] == [(64, 4096), (8, 16384)]
    shapes = bench_kernels._shapes(parse(["batch=4", "length=8,16", "dtype=float32,bfloat16"]))
    assert [(shape.batch, shape.length, shape.dtype) for shape in shapes] == [
        (4, 8, "float32"), (4, 16, "float32"), (4, 8, "bfloat16"), (4, 16, "bfloat16"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="batch=1,2 length=1,2,3: allowed are as many, or one of either"):
        bench_kernels._shapes(parse(["batch=1,2", "length=1,2,3"]))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["foo=1"], "foo=1: allowed is NAME=VALUE with one of device, attention"),
        (["batch"], "batch: allowed is NAME=VALUE"),
        (["device=tpu"], "device=tpu: allowed is cpu, cuda"),
        (["dtype=int8"], "dtype=int8: allowed is float32, bfloat16, float16"),
        (["ops=decode,swap"], "ops=swap: allowed is decode, prefill, append, copy"),
        (["layout=sideways"], "layout=sideways: allowed is token_major, head_major"),
        (["pages=1g"], "pages=1g: allowed is 4k, thp"),
        (["device=cuda", "layout=head_major"], "layout=head_major: allowed with device=cpu only"),
        (
            ["device=cuda", "attention=sdpa_dense"],
            "attention=sdpa_dense: allowed is kvlab, sdpa, flash_attn, flashinfer",
        ),
        (["batch=0"], "batch=0: allowed is a whole number from 1 to 2147483648"),
        (["batch=99999999999999"], "batch=99999999999999: allowed is a whole number from 1 to 2147483648"),
        (["threads=99999"], "threads=99999: allowed is a whole number from 1 to 1024"),
        (["head_dim=64,128"], "head_dim=64,128: allowed is one value"),
        (["q_heads=8"], "q_heads=8: allowed is a multiple of kv_heads=3"),
        (["batch=1000000", "length=1000000"], "batch=1000000 length=1000000 block_sizes=16,64: it needs about"),
        (["attention=flash_attn"], "attention=flash_attn: it needs device=cuda"),
        (["--steps", "3"], "--steps: allowed with kvlab bench bookkeeping only"),
        (["--repeats", "0"], "--repeats 0: allowed is a whole number, 1 or more"),
    ],
)
def test_wrong_use_is_one_line(capsys, arguments, reason):
    """99,999 threads were started, and the process died of it; too large a number was told to be 1 or more."""
    assert main(["bench", "kernels", *arguments]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_cuda_is_one_line(capsys):
    assert main(["bench", "kernels", "device=cuda"]) == 2
    assert "device=cuda: torch" in capsys.readouterr().err


def test_bookkeeping_takes_no_names_with_values(capsys):
    """The line named kernels alone, though others take such words."""
    assert main(["bench", "bookkeeping", "batch=3"]) == 2
    said = capsys.readouterr().err
    assert "batch=3: allowed with kvlab bench kernels, simulator, engine, calibrate, tune only" in said


def test_pools_of_small_shapes_lie_in_one_mapping(monkeypatch):
    """Two mappings of 2 MiB and more for each layer: of 100,000 layers the system refused some, and the line said
    that nothing could be written."""
    made, empty = [], pages.empty
    monkeypatch.setattr(pages, "empty", lambda *given: made.append(given[0]) or empty(*given))
    small = dataclasses.replace(plan({"kvlab": Attention(Kvlab())}, clock=steady), pages="4k")
    shape = SHAPE._replace(batch=1, length=1)
    rows = measure(shape, small)
    assert 2**16 // shape.kv_bytes > 200, "layers"
    assert len(made) == 3, "the two arrays of the bandwidths, and all pools"
    assert [row["op"] for row in rows] == ["read", "copy memory", "decode", "decode"]


def test_memory_counts_whole_blocks_layers_and_queries(capsys):
    """Blocks were not counted: one of 2^31 slots for 20 tokens was refused by the system, and not in our words."""
    assert main(["bench", "kernels", *SMALL[:-1], "block_sizes=16,2147483647"]) == 2
    assert "length=20 block_sizes=16,2147483647: it needs about" in capsys.readouterr().err
    ours = plan({}, block_sizes=(16,))
    pools = -(-(2**16) // SHAPE.kv_bytes) * SHAPE.batch * 32 * SHAPE.slot_bytes
    assert needed_bytes(SHAPE, ours) == pools + 2 * 2**16 + 2 * 3 * 4 * 16 * 4
    prompts = dataclasses.replace(ours, ops=("prefill",))
    assert needed_bytes(SHAPE, prompts) == pools + 2 * 2**16 + 2 * 60 * 4 * 16 * 4


def test_digits_are_those_that_everybody_reads():
    with pytest.raises(UsageError, match="threads=٣: allowed is a whole number"):
        parse(["threads=٣"])

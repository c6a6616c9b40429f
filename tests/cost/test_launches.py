"""Seconds of launches: against the formula counted by hand, and against what must hold of any."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.errors import UsageError

IDEAL = {f"cost__efficiency__{name}": 1.0 for name in ("weights", "products", "decode_attention", "prefill_attention")}
FREE = {f"cost__overhead__{name}_us": 0 for name in ("launch", "decode_sequence", "prefill_sequence", "token")}


def launch(cost, new, stop, samples=0):
    return cost.launch(np.array(new), np.array(stop), samples)


@pytest.mark.parametrize("strategy", ["contiguous", "paged", "vattention"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_decode_is_launches_one_by_one(build, strategy, ranks):
    cost = build(strategy=strategy, tensor_parallel=ranks).cost
    stop_B = np.array([1, 7, 300, 2999, 3000])
    one_by_one = [cost.launch(np.ones(5, int), stop_B + step, 5) for step in range(40)]
    assert cost.decode(5, int(stop_B.sum()), 40) == pytest.approx(one_by_one, rel=1e-12)


def test_decoding_reads_weights_once_and_every_token_once(build):
    cost = build(**IDEAL, **FREE).cost
    rank, bandwidth = cost.rank, 2039e9
    numbers = rank.body_weights + 2 * rank.activations + rank.head_weights + 2 * rank.head_activations
    expected = (2 * numbers + 131072 * 5000) / bandwidth
    assert launch(cost, [1, 1], [2000, 3000], 2) == pytest.approx(expected)


def test_a_long_prompt_is_bound_by_operations(build):
    cost = build(**IDEAL, **FREE).cost
    tokens, pairs = 4096, 4096 * 4097 // 2
    operations = 2 * cost.rank.body_weights * tokens + 4 * 32 * 32 * 128 * pairs
    assert launch(cost, [tokens], [tokens]) == pytest.approx(operations / 312e12)


def test_logits_are_for_sampled_tokens_alone(build):
    cost = build(**IDEAL, **FREE).cost
    head = (cost.rank.head_weights + cost.rank.head_activations) * 2 / 2039e9
    assert launch(cost, [100], [100], 1) - launch(cost, [100], [100], 0) == pytest.approx(head)


def test_a_prompt_in_two_pieces_sees_what_it_sees_in_one(build):
    """Queries see the same pairs; the second piece reads the first again."""
    cost = build().cost
    whole, first, second = (
        cost._prefill(np.array([n]), np.array([s])) for n, s in ((2048, 2048), (1024, 1024), (1024, 2048))
    )
    assert whole <= first + second <= 1.01 * whole


@pytest.mark.parametrize(("new", "stop"), [([1, 1], [100, 200]), ([64, 1], [64, 900]), ([500], [1500])])
def test_more_work_never_takes_less(build, new, stop):
    cost, base = build(strategy="paged").cost, (np.array(new), np.array(stop), len(new))
    seconds = cost.launch(*base)
    assert cost.launch(base[0], base[1] + 100, base[2]) > seconds
    assert cost.launch(np.append(base[0], 1), np.append(base[1], 50), base[2]) > seconds
    assert cost.launch(base[0], base[1], base[2] - 1) < seconds


def test_blocks_cost_what_the_kernel_says(build):
    rows, paged = build(**FREE).cost, build(strategy="paged", **FREE).cost
    equal = build(strategy="paged", cost__paged_factor=1.0, **FREE).cost
    double = build(strategy="paged", cost__paged_factor=2.0, **FREE).cost
    for new, stop in (([2048], [2048]), ([1], [4000])):
        attention = launch(double, new, stop) - launch(equal, new, stop)
        assert launch(equal, new, stop) == launch(rows, new, stop)
        assert 0 < launch(paged, new, stop) - launch(rows, new, stop) < attention
    extra = launch(paged, [2048], [2048]) - launch(rows, [2048], [2048])
    whole = launch(double, [2048], [2048]) - launch(rows, [2048], [2048])
    assert extra == pytest.approx(0.11 * whole)  # FlashAttention-2 at 2K


def test_kernels_by_name_and_block_size(build):
    factors = [
        build(strategy="paged", cost__kernel="vllm_0_2", strategy__block_size=size).cost.factors.decode
        for size in (1, 16, 64, 512)
    ]
    assert factors == [2.12, 2.12, 3.10, 4.03]
    with pytest.raises(UsageError, match="cost.kernel=xformers: allowed is flash_attn, flashinfer, kvlab"):
        build(strategy="paged", cost__kernel="xformers")


def test_smaller_numbers_halve_what_is_read(build):
    wide, narrow = build(**FREE).cost, build(kv_dtype="int8", **FREE).cost
    assert narrow.token_bytes * 2 == wide.token_bytes
    read = [launch(cost, [1], [4096]) - launch(cost, [1], [1]) for cost in (wide, narrow)]
    assert read[1] == pytest.approx(read[0] / 2)


def test_two_gpus_share_work_and_talk(build):
    one, two = build(**FREE).cost, build(tensor_parallel=2, **FREE).cost
    silent = build(tensor_parallel=2, gpu__link_latency_us=0, gpu__link_gb_s=1e12, **FREE).cost
    work = [launch(cost, [1] * 4, [4000] * 4, 4) for cost in (one, two, silent)]
    assert work[2] == pytest.approx(work[0] / 2, rel=0.01)
    assert work[1] - work[2] == pytest.approx(2 * 32 * (10e-6 + 4 * 4096 * 2 / 300e9), rel=1e-6)


def test_measured_products_are_interpolated(build):
    table = {
        "dtype": "bfloat16",
        "rows": [1, 4, 8],
        "body_ps_per_weight": [10, 40, 60],
        "head_ps_per_weight": [1, 1, 1],
    }
    cost = build(gpu__products=table, **FREE).cost
    seconds = [cost.body.seconds(rows, 10**12, 0) for rows in (1, 2, 4, 6, 8, 16)]
    assert seconds == pytest.approx([10, 20, 40, 50, 60, 120])
    with pytest.raises(UsageError, match="dtype=float32: gpu=a100_80 was measured with bfloat16"):
        build(gpu__products=table, dtype="float32")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"dtype": "float32"}, "dtype=float32: gpu=a100_80 states no tflops_32bit; allowed is bfloat16"),
        ({"tensor_parallel": 3}, "tensor_parallel=3: allowed is a divisor of the model's 32 heads"),
        ({"tensor_parallel": 2, "gpu__link_gb_s": None}, "gpu.link_gb_s=None: allowed is a number"),
        ({"gpu__bandwidth_gb_s": 0}, "gpu.bandwidth_gb_s=0: allowed is a number from 1e-12 to 1e+12"),
        ({"cost__efficiency__weights": 1.5}, "cost.efficiency.weights=1.5: allowed is a number from 1e-12 to 1"),
        ({"gpu__bandwidth_gb_s": 1e-300}, "gpu.bandwidth_gb_s=1e-300: allowed is a number from 1e-12 to 1e+12"),
        ({"gpu__memory_gib": 1e300}, "gpu.memory_gib=1e+300: allowed is a number from 1e-12 to 1e+12"),
        ({"cost__overhead__launch_us": 1e308}, "cost.overhead.launch_us=1e+308: allowed is a number from 0 to 1e+12"),
        ({"cost__query_tile": 0.5}, "cost.query_tile=0.5: allowed is a whole number, 1 or more"),
        ({"cost__overlap_mapping": "maybe"}, "cost.overlap_mapping=maybe: allowed is true or false"),
        ({"kv_dtype": "int4"}, "kv_dtype=int4: allowed here is"),
    ],
)
def test_wrong_values_are_one_line(build, changes, line):
    """Absurd constants made infinite times or an OverflowError; half a query in a tile a division by zero."""
    with pytest.raises(UsageError) as caught:
        build(**changes)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)

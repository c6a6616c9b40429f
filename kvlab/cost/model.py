"""What a launch and its moves would cost on a GPU that is not there: every figure from here is simulated.

A launch takes, one after another: the layers' products, attention of those that decode, attention of prompts, the
logits of sampled tokens, all-reduces between GPUs, and overhead. Each of the first four takes the longer of its bytes
over the bandwidth and its operations over the peak, both times a stated efficiency. docs/simulation.md counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvlab.cost.kernels import Factors
from kvlab.cost.nodes import Node
from kvlab.cost.prices import HostLink, MovePrices, PagePrices
from kvlab.cost.products import Products, Roofline, measured
from kvlab.cost.rank import Rank, value_bytes
from kvlab.errors import UsageError
from kvlab.model.shape import Shape
from kvlab.moves import Move
from kvlab.strategy import Strategy

Seconds = TypeVar("Seconds", float, NDArray[np.float64])
GIB = 1 << 30


@dataclass(frozen=True)
class AttentionRates:
    """What one token's keys and values cost in all layers, in seconds of one GPU."""

    read: float  # to read them, decoding
    read_tile: float  # to read them, for a tile of a prompt's queries
    see: float  # to multiply one query with them, decoding
    see_prompt: float  # the same in a prompt
    tile: int  # queries of a prompt that read keys and values together


@dataclass(frozen=True)
class Overhead:
    """Seconds that a launch takes whatever it computes, and that each of its parts adds."""

    launch: float
    decode_sequence: float
    prefill_sequence: float
    token: float


class CostModel:
    """Seconds of launches and moves for one shape, one GPU (or several alike) and one strategy."""

    def __init__(
        self,
        rank: Rank,
        body: Products,
        head: Products,
        attention: AttentionRates,
        factors: Factors,
        overhead: Overhead,
        prices: MovePrices,
        *,
        reduce_s: tuple[float, float],
        overlapped: bool,
        kv_bytes: int,
        token_bytes: int,
    ) -> None:
        """reduce_s: seconds of all-reduces a launch, and a token. kv_bytes: what one GPU leaves for the pool."""
        self.rank, self.body, self.head = rank, body, head
        self.attention, self.factors, self.overhead, self.prices = attention, factors, overhead, prices
        self.reduce_s, self.overlapped = reduce_s, overlapped
        self.kv_bytes, self.token_bytes = kv_bytes, token_bytes

    def launch(self, new_B: NDArray[np.int64], stop_B: NDArray[np.int64], samples: int) -> float:
        """Seconds of a launch in which sequence b computes the last new_B[b] of its then stop_B[b] tokens.

        samples: sequences that sample a token.
        """
        tokens, sequences = int(new_B.sum()), len(new_B)
        if tokens == sequences:
            return self._fixed(sequences, 0, tokens, samples) + self._decode(float(stop_B.sum()))
        long_B = new_B > 1
        prompts = int(long_B.sum())
        fixed = self._fixed(sequences - prompts, prompts, tokens, samples)
        return fixed + self._decode(float(stop_B[~long_B].sum())) + self._prefill(new_B[long_B], stop_B[long_B])

    def decode(self, seqs: int, tokens: int, steps: int) -> NDArray[np.float64]:
        """Seconds [steps] of launches in each of which `seqs` sequences compute and sample one token.

        tokens: what they hold in the first one, the new ones included.
        """
        tokens_S = tokens + seqs * np.arange(steps, dtype=np.float64)
        return self._fixed(seqs, 0, seqs, seqs) + self._decode(tokens_S)

    def moves(self, moves: list[Move]) -> float:
        """Seconds of moves before a launch. Each list of moves is asked for once, in order, here or in `beside`."""
        return self.prices.seconds(moves)

    def beside(self, moves: list[Move], launch_s: float) -> float:
        """Seconds by which moves beside a launch of `launch_s` seconds make it longer."""
        seconds = self.prices.seconds(moves)
        return max(0.0, seconds - launch_s) if self.overlapped else seconds

    def memory_bytes(self) -> int:
        """What the GPU leaves for keys and values; of several, each leaves so much. UsageError: nothing."""
        if self.kv_bytes < self.token_bytes:
            raise UsageError("the GPU's memory does not hold the weights; allowed is a larger gpu or tensor_parallel")
        return self.kv_bytes

    def _fixed(self, decoding: int, prompts: int, tokens: int, samples: int) -> float:
        """Whatever does not depend on how long the sequences are."""
        rank, overhead = self.rank, self.overhead
        products = self.body.seconds(tokens, rank.body_weights, rank.activations)
        logits = self.head.seconds(samples, rank.head_weights, rank.head_activations) if samples else 0.0
        reduces = self.reduce_s[0] + tokens * self.reduce_s[1]
        parts = decoding * overhead.decode_sequence + prompts * overhead.prefill_sequence + tokens * overhead.token
        return products + logits + reduces + overhead.launch + parts

    def _decode(self, tokens: Seconds) -> Seconds:
        """Attention of single queries over so many tokens; each is read once."""
        return tokens * (max(self.attention.read, self.attention.see) * self.factors.decode)

    def _prefill(self, new_B: NDArray[np.int64], stop_B: NDArray[np.int64]) -> float:
        """Attention of prompts: a query sees the tokens up to its own, a tile of queries reads what its last sees."""
        rates, factor_B = self.attention, self.factors.prefill(stop_B)
        start_B, tiles_B = stop_B - new_B, -(-new_B // rates.tile)
        seen_B = new_B * start_B + new_B * (new_B + 1) // 2
        read_B = tiles_B * start_B + rates.tile * tiles_B * (tiles_B - 1) // 2 + new_B
        read, see = float(factor_B @ read_B) * rates.read_tile, float(factor_B @ seen_B) * rates.see_prompt
        return max(read, see)


def build_cost(config: dict[str, Any], shape: Shape, strategy: Strategy) -> CostModel:
    """From the nodes gpu, vmm and cost of a resolved configuration. UsageError: one is missing or wrong."""
    if any(window is not None for window in strategy.memory.windows):
        raise UsageError("executor=simulated: a model with layers behind a window has no cost model yet")
    gpu, cost = Node("gpu", config.get("gpu")), Node("cost", config.get("cost"))
    dtype = str(config["dtype"])
    kv_bytes = value_bytes("kv_dtype", str(config.get("kv_dtype") or dtype))
    rank = Rank.of(shape, _ranks(config))
    bandwidth = gpu.positive("bandwidth_gb_s") * 1e9
    attention = str(config["attention"].get("name"))
    overhead = cost.part("overhead")
    token_bytes = 2 * shape.layers * rank.kv_heads * shape.head_dim * kv_bytes
    return CostModel(
        rank,
        _products(gpu, cost, "body_ps_per_weight", dtype),
        _products(gpu, cost, "head_ps_per_weight", dtype),
        _attention(gpu, cost, shape, rank, dtype, token_bytes),
        Factors(cost, attention, strategy.block_size),
        Overhead(*(overhead.number(f"{name}_us") * 1e-6 for name in Overhead.__dataclass_fields__)),
        MovePrices(
            _pages(config, strategy),
            strategy,
            cost.number("copy_call_us") * 1e-6,
            bandwidth * cost.part("efficiency").share("copy"),
            _host_link(gpu, cost) if strategy.memory.host_bytes else None,
        ),
        reduce_s=_reduces(gpu, shape, rank, value_bytes("dtype", dtype)),
        overlapped=cost.flag("overlap_mapping"),
        kv_bytes=kv_memory(config, shape),
        token_bytes=token_bytes,
    )


def _ranks(config: dict[str, Any]) -> int:
    given = config.get("tensor_parallel")
    return 1 if given is None else given


def _peak(gpu: Node, dtype: str) -> float:
    """Operations per second. UsageError: the GPU's is not known for numbers of that size."""
    key = f"tflops_{8 * value_bytes('dtype', dtype)}bit"
    if gpu.values.get(key) is None:
        known = [name for name in ("float32", "bfloat16") if gpu.values.get(f"tflops_{8 * value_bytes('', name)}bit")]
        raise UsageError(f"dtype={dtype}: gpu={gpu.values.get('name')} states no {key}; allowed is {', '.join(known)}")
    return gpu.positive(key) * 1e12


def _products(gpu: Node, cost: Node, part: str, dtype: str) -> Products:
    table = measured(gpu, part, dtype)
    if table is not None:
        return table
    efficiency = cost.part("efficiency")
    read = gpu.positive("bandwidth_gb_s") * 1e9 * efficiency.share("weights")
    return Roofline(read, _peak(gpu, dtype) * efficiency.share("products"), value_bytes("dtype", dtype))


def _attention(gpu: Node, cost: Node, shape: Shape, rank: Rank, dtype: str, token_bytes: int) -> AttentionRates:
    efficiency, bandwidth, peak = cost.part("efficiency"), gpu.positive("bandwidth_gb_s") * 1e9, _peak(gpu, dtype)
    operations = 4 * shape.layers * rank.q_heads * shape.head_dim
    return AttentionRates(
        read=token_bytes / (bandwidth * efficiency.share("decode_attention")),
        read_tile=token_bytes / (bandwidth * efficiency.share("decode_attention")),
        see=operations / (peak * efficiency.share("decode_operations")),
        see_prompt=operations / (peak * efficiency.share("prefill_attention")),
        tile=cost.whole("query_tile"),
    )


def _reduces(gpu: Node, shape: Shape, rank: Rank, value: int) -> tuple[float, float]:
    """Seconds of the two all-reduces of each layer: a launch, and a token. A ring moves 2 (n - 1) / n of the bytes."""
    if rank.ranks == 1:
        return 0.0, 0.0
    share = 2 * (rank.ranks - 1) / rank.ranks
    token = share * shape.hidden * value / (gpu.positive("link_gb_s") * 1e9)
    return 2 * shape.layers * gpu.number("link_latency_us") * 1e-6, 2 * shape.layers * token


def _host_link(gpu: Node, cost: Node) -> HostLink:
    share = cost.part("efficiency").share("host_link")
    return HostLink(cost.number("host_call_us") * 1e-6, gpu.positive("host_link_gb_s") * 1e9 * share)


def _pages(config: dict[str, Any], strategy: Strategy) -> PagePrices | None:
    if not strategy.virtual:
        return None
    memory = strategy.memory
    pages = 2 if memory.sliced else 2 * len(memory.windows)
    return PagePrices(Node("vmm", config.get("vmm")), memory.page_group_bytes // pages)


def kv_memory(config: dict[str, Any], shape: Shape) -> int:
    """What a GPU leaves: memory x fraction - weights - activations of a launch of cost.activation_tokens tokens."""
    gpu, cost = Node("gpu", config.get("gpu")), Node("cost", config.get("cost"))
    rank, dtype = Rank.of(shape, _ranks(config)), str(config["dtype"])
    whole = gpu.positive("memory_gib") * GIB * cost.share("memory_fraction")
    widest = rank.activations // shape.layers + 2 * shape.hidden
    activations = cost.number("activation_tokens") * widest
    return int(whole - (rank.stored_weights + activations) * value_bytes("dtype", dtype))

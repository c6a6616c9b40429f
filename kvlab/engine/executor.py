"""Carries a launch out with a real model: moves, view, forward, sample."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.kernels import Kernels
from kvlab.engine.lanes import Lanes
from kvlab.engine.launch import Launch, packed
from kvlab.engine.sampling import Asked, Sampler, best
from kvlab.kernels.attention import SHORT
from kvlab.kernels.pool import tile_of
from kvlab.kernels.write import Writing
from kvlab.memory.dense import DenseStore
from kvlab.memory.store import Store
from kvlab.model import llama
from kvlab.model.llama import Llama
from kvlab.strategy import Move, Strategy, ceil_div


class Attention:
    """What the model calls in each layer of one launch: store the new keys and values, then attend."""

    def __init__(self, store: Store, kernels: Kernels, view: Any, scale: float) -> None:
        self.store, self.kernels, self.view, self.scale = store, kernels, view, scale
        self.writing: Writing | None = None

    def __call__(self, layer: int, q_TQD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
        k_SHD, v_SHD = self.store.layer(layer)
        if self.writing is None:
            self.writing = Writing(k_SHD, self.view.slot_T, k_THD, v_THD)
        self.writing(k_SHD, v_SHD, k_THD, v_THD)
        return self.kernels.attend(q_TQD, k_SHD, v_SHD, self.view, self.scale)


class RealExecutor:
    """One model, one store, one strategy's tables; `ns` adds up the nanoseconds of each part of a step."""

    def __init__(self, model: Llama, store: Store, strategy: Strategy, lanes: Lanes, kernels: Kernels) -> None:
        self.model, self.store, self.strategy, self.lanes, self.kernels = model, store, strategy, lanes, kernels
        self.sampler = Sampler()
        self.scale = model.shape.head_dim**-0.5
        self.device_ns: dict[str, int] = {}  # the same on a device
        self.ns = {"moves": 0, "view": 0, "model": 0, "sample": 0, "beside": 0}  # beside: waited for at the end

    def run(self, moves: list[Move], launch: Launch) -> NDArray[np.int32]:
        """Sampled tokens [M], one for each of the launch's rows."""
        marks = [perf_counter_ns()]
        self.store.apply(moves)
        self.store.apply_beside(launch.beside)
        marks.append(perf_counter_ns())
        view = self._view(launch)
        marks.append(perf_counter_ns())
        logits_MV = self._forward(launch, self._attention(self.store, view))
        marks.append(perf_counter_ns())
        token_M = self._sample(logits_MV, launch)
        marks.append(perf_counter_ns())
        self.store.join()
        marks.append(perf_counter_ns())
        for part, begin, end in zip(self.ns, marks, marks[1:], strict=False):
            self.ns[part] += end - begin
        return token_M

    def warm_up(self) -> None:
        """One small launch over memory of its own: first-call costs stay out of the run's times."""
        shape, stop_B, start_B = self.model.shape, np.array([SHORT + 1, 1]), np.zeros(2, np.int64)
        tokens = SHORT + 2  # a prompt that goes through torch, and a token that does not
        block_size = self.strategy.block_size or SHORT + 1
        width = ceil_div(SHORT + 1, block_size)
        table_BP, slots = np.arange(2 * width, dtype=np.int32).reshape(2, width), 2 * width * block_size
        if self.strategy.block_size is None:
            table_BP *= block_size
        pool = self.store.layer(0)[0]
        dtype, device, tile = pool.dtype, pool.device, tile_of(pool)
        del pool  # an error would hold the tensor
        scratch = DenseStore(shape.layers, slots, shape.kv_heads, shape.head_dim, dtype, str(device), tile)
        view = self.kernels.make_view(table_BP, start_B, stop_B, self.strategy.block_size)
        _, position_T = packed(stop_B, start_B, stop_B)
        zeros_T = torch.zeros(tokens, dtype=torch.int64, device=device)
        for _ in range(2):
            self.model(
                zeros_T,
                torch.from_numpy(position_T).to(device),
                self._attention(scratch, view),
                torch.tensor([tokens - 2, tokens - 1], device=device),
            )
        scratch.close()

    def _view(self, launch: Launch) -> Any:
        block_size = self.strategy.block_size
        width = 1 if block_size is None else ceil_div(int(launch.stop_B.max()), block_size)
        table_BP = self.strategy.table.data[launch.row_B, :width]  # whole rows would cost max_len, whatever is used
        return self.kernels.make_view(table_BP, launch.start_B, launch.stop_B, block_size)

    def _attention(self, store: Store, view: Any) -> llama.Attention:
        return Attention(store, self.kernels, view, self.scale)

    def notice(self) -> str:
        """A line on what was asked for and is not done; empty where all is."""
        return ""

    def describe(self) -> dict[str, Any] | None:
        """The device, for the result; None on a CPU."""
        return None

    def _forward(self, launch: Launch, attention: llama.Attention) -> Tensor:
        assert launch.ids_T is not None
        _, position_T = packed(launch.lane_B, launch.start_B, launch.stop_B)
        ids_T = torch.from_numpy(launch.ids_T.astype(np.int64))
        return self.model(ids_T, torch.from_numpy(position_T), attention, torch.from_numpy(launch.rows()))

    def _sample(self, logits_MV: Tensor, launch: Launch) -> NDArray[np.int32]:
        if launch.choices is not None:
            launch.choices.take(*best(logits_MV[torch.from_numpy(launch.choices.row_R)], launch.choices.count))
        return self.sampler(logits_MV, *self._asked(launch))

    def _asked(self, launch: Launch) -> Asked:
        """Sequences, positions, temperatures and seeds of the sampled rows, each [M]."""
        lanes, lane_M = self.lanes, launch.lane_B[launch.sampled()]
        id_M = lanes.id[lane_M] if launch.also is None else launch.also.id_M
        return id_M, launch.positions(), lanes.temperature[lane_M], lanes.seed[lane_M]

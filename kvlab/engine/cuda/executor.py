"""Carries launches out on a device: moves, tables, launch, moves beside it, tokens; a step ends with its tokens.

The store marks the stream before it carries moves out, so that memory is taken from nobody who still reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.attentions.gpu import KvlabGpu
from kvlab.engine.cuda.graphs import DecodeGraphs
from kvlab.engine.cuda.inputs import Inputs
from kvlab.engine.cuda.pieces import pieces
from kvlab.engine.cuda.platform import Platform
from kvlab.engine.cuda.sampling import DeviceSampler
from kvlab.engine.cuda.tables import DeviceTables
from kvlab.engine.cuda.timing import StepTimes
from kvlab.engine.executor import RealExecutor
from kvlab.engine.kernels import Kernels
from kvlab.engine.lanes import Lanes
from kvlab.engine.launch import Launch, packed
from kvlab.engine.sampling import best
from kvlab.kernels.gpu.append import append
from kvlab.kernels.gpu.copy import copy_layers, layers_of
from kvlab.kernels.gpu.geometry import over_table
from kvlab.kernels.gpu.splits import multiprocessors_of, splits_for
from kvlab.kernels.gpu.tuning import config_for
from kvlab.memory.store import Copies, Layers, Store
from kvlab.model.llama import Attention, Llama
from kvlab.moves import Copy
from kvlab.strategy import Move, Strategy, ceil_div


class DeviceAttention:
    """What the model calls in each layer of one launch: store the new keys and values, then attend."""

    def __init__(self, store: Store, kernels: Kernels, view: Any, scale: float) -> None:
        self.store, self.kernels, self.view, self.scale = store, kernels, view, scale

    def __call__(self, layer: int, q_TQD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
        k_SHD, v_SHD = self.store.layer(layer)
        append(k_SHD, v_SHD, self.view.slot_T, k_THD, v_THD)
        return self.kernels.attend(q_TQD, k_SHD, v_SHD, self.view, self.scale)


class DeviceExecutor(RealExecutor):
    """`graphs_off`: why decode is not recorded in graphs; empty where it is. device_ns: as ns, on the device."""

    def __init__(
        self,
        model: Llama,
        store: Store,
        strategy: Strategy,
        lanes: Lanes,
        kernels: Kernels,
        platform: Platform,
        graphs: bool = True,
    ) -> None:
        super().__init__(model, store, strategy, lanes, kernels)
        self.platform, self.choices = platform, DeviceSampler()
        self.sampler = self.choices
        self.times = StepTimes(platform, self.ns, self.device_ns)
        self.block_size, own = strategy.block_size, isinstance(kernels, KvlabGpu)
        self.tables = DeviceTables(strategy.table, platform) if own and self.block_size is not None else None
        store.copy_all_with(_copies)
        self.graphs_off = "" if graphs else "engine.cuda_graphs=false"
        if not own:
            self.graphs_off = (
                self.graphs_off or "this attention plans each launch on the host; attention=kvlab does not"
            )
        self.graphs = None if self.graphs_off else self._graphs()

    def run(self, moves: list[Move], launch: Launch) -> NDArray[np.int32]:
        """Sampled tokens [M], one for each of the launch's rows."""
        times = self.times
        times.begin("moves")
        self.store.apply(moves)
        times.begin("view")
        if self.tables is not None and self.block_size is not None:
            self.tables.update(launch.row_B, -(-launch.stop_B // self.block_size))
        answers = self._answers(launch)
        times.begin("sample")
        answer_2N = torch.cat(answers, dim=1)
        times.asked()
        self.store.apply_beside(launch.beside)
        token_N = self._tokens(self.platform.read(answer_2N), launch)
        times.begin("beside")
        self.store.join()
        times.end()
        return token_N

    def warm_up(self) -> None:
        """What is compiled, chosen and recorded at first stays out of the run's times. Touches no slot."""
        if isinstance(self.kernels, KvlabGpu):
            self._warm_eagerly()
        else:
            super().warm_up()
        if self.graphs is not None:
            self.graphs.capture_all(self.strategy.memory.max_len)
        self.platform.read(torch.zeros(1, device=self.platform.device))

    def notice(self) -> str:
        return f"CUDA graphs are off: {self.graphs_off}" if self.graphs_off else ""

    def describe(self) -> dict[str, Any]:
        """For the result."""
        graphs = self.graphs
        return {
            **self.platform.describe(),
            "used_bytes": self.platform.used_bytes(),
            "cuda_graphs": graphs is not None,
            "cuda_graphs_off": self.graphs_off,
            "graphs": len(graphs.graphs) if graphs else 0,
            "graph_bytes": graphs.nbytes if graphs else 0,
            "graph_replays": graphs.replays if graphs else 0,
            "table_entries_sent": self.tables.sent if self.tables else None,
        }

    # --- one launch

    def _answers(self, launch: Launch) -> list[Tensor]:
        """answer_2N of all that samples, asked for and not waited for."""
        if self._recorded(launch):
            return self._replay(launch)
        return [self._compute(piece) for piece in pieces(launch)]

    def _compute(self, launch: Launch) -> Tensor:
        """answer_2N of a launch, or of a piece of one."""
        assert launch.ids_T is not None
        self.times.begin("view")
        view = self._view(launch)
        _, position_T = packed(launch.lane_B, launch.start_B, launch.stop_B)
        rows_M = launch.rows()
        sizes = [len(position_T), len(position_T), len(rows_M)]
        sent = self.platform.send(np.concatenate([launch.ids_T.astype(np.int64), position_T, rows_M]))
        self.times.begin("model")
        ids_T, there_T, there_M = torch.split(sent, sizes)
        logits_MV = self.model(ids_T, there_T, self._attention(self.store, view), there_M)
        self.times.begin("sample")
        if launch.choices is not None:
            asked_R = self.platform.send(launch.choices.row_R)
            launch.choices.take(*best(logits_MV[asked_R], launch.choices.count))
        self.choices.heat(logits_MV, *self._asked(launch), platform=self.platform)
        return self.choices.answer(logits_MV)

    def _attention(self, store: Store, view: Any) -> Attention:
        return DeviceAttention(store, self.kernels, view, self.scale)

    def _view(self, launch: Launch) -> Any:
        if self.tables is None or self.block_size is None:
            return super()._view(launch)
        width = ceil_div(int(launch.stop_B.max()), self.block_size)
        table_BP = self.strategy.table.data[launch.row_B, :width]
        return over_table(self.tables.table_RP, launch.row_B, table_BP, launch.start_B, launch.stop_B, self.block_size)

    def _tokens(self, answer_2N: NDArray[np.int64], launch: Launch) -> NDArray[np.int32]:
        return self.choices.tokens(answer_2N, *self._asked(launch)[:3])

    # --- recorded launches

    def _recorded(self, launch: Launch) -> bool:
        """Whether a graph can stand for it: one token of each sequence, and nobody's sample has a temperature."""
        alone = self.graphs is not None and self.graphs.take(len(launch.lane_B))
        plain = launch.also is None and launch.choices is None
        single = alone and plain and bool((launch.stop_B - launch.start_B == 1).all())
        return single and not self.lanes.temperature[launch.lane_B].any()

    def _replay(self, launch: Launch) -> list[Tensor]:
        assert self.graphs is not None
        assert launch.ids_T is not None
        row_B, position_B, data = launch.row_B, launch.start_B, self.strategy.table.data
        if self.block_size is None:
            place_B = data[row_B, 0].astype(np.int64)
            slot_B = place_B + position_B
        else:
            block_B = data[row_B, position_B // self.block_size].astype(np.int64)
            place_B, slot_B = row_B, block_B * self.block_size + position_B % self.block_size
        self.times.begin("model")
        answer_2B = self.graphs.replay(launch.ids_T, position_B, slot_B, place_B)
        if launch.samples_B.all():
            return [answer_2B]
        return [answer_2B[:, self.platform.send(np.flatnonzero(launch.samples_B))]]

    def _graphs(self) -> DecodeGraphs:
        most, table_RP = self.strategy.memory.max_seqs, self.tables.table_RP if self.tables else None
        return DecodeGraphs(
            self.platform,
            Inputs(self.platform, most, table_RP, self.block_size),
            most,
            self._decode_inputs,
            self._splits,
        )

    def _decode_inputs(self, bucket: int, longest: int) -> Tensor:
        """answer_2M of what the graphs' inputs hold."""
        assert self.graphs is not None
        inputs = self.graphs.inputs
        ids_M, position_M = inputs.device["ids"][:bucket], inputs.device["position"][:bucket]
        attention = self._attention(self.store, inputs.view(bucket, longest))
        return self.choices.answer(self.model(ids_M, position_M, attention, inputs.index_M[:bucket]))

    def _splits(self, bucket: int, longest: int) -> int:
        """As decode chooses them."""
        shape, dtype = self.model.shape, self.store.layer(0)[0].dtype
        config = config_for("decode", dtype, shape.head_dim, self.block_size, shape.q_heads // shape.kv_heads)
        processors = multiprocessors_of(self.platform.device)
        return splits_for(bucket * shape.kv_heads, longest, config.tile, processors)

    # --- before the run

    def _warm_eagerly(self) -> None:
        """One token of a sequence and two of another, through kernels that find both of no length."""
        zeros_T = torch.zeros(3, dtype=torch.int64, device=self.platform.device)
        attention = self._attention(self.store, self._empty_view())
        for _ in range(2):
            self.choices.answer(self.model(zeros_T, zeros_T, attention, zeros_T[:2]))

    def _empty_view(self) -> Any:
        nothing = np.zeros(2, np.int64)
        start_B, stop_B = nothing, np.array([1, 2])
        if self.tables is None or self.block_size is None:
            view = self.kernels.make_view(np.zeros((2, 1), np.int32), start_B, stop_B, None)
        else:
            view = over_table(
                self.tables.table_RP, nothing, np.zeros((2, 2), np.int32), start_B, stop_B, self.block_size
            )
        view.slot_T.fill_(-1)
        for part in filter(None, (view.decode, view.prefill)):
            part.sequences.length_B.fill_(0)
            part.sequences.new_B.fill_(0)
        return view


def _copies(layers: Layers) -> Copies:
    """Runs in all layers' keys and values in one launch."""
    together = layers_of(layers)

    def copy(moves: list[Copy]) -> None:
        source_N, target_N, tokens_N = np.array([move[:3] for move in moves], np.int64).T
        copy_layers(together, source_N, target_N, tokens_N)

    return copy

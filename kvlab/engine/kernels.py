"""What reads a strategy's tables: a view of each launch and a kernel over it; `attention` in the configuration."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.build import build
from kvlab.errors import UsageError
from kvlab.kernels import attention
from kvlab.memory import view


class Kernels(Protocol):
    """B sequences, P table entries, T new tokens, Q query heads, S slots, H key/value heads, D head size."""

    def make_view(
        self, table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
    ) -> Any:
        """The launch that computes the tokens [start, stop) of each sequence; table row b is that of sequence b.

        Its slot_T, int64, are the slots that the packed new tokens are written to. The rest is the kernel's own.
        block_size None: entry 0 is the row's first slot. Entries beyond the last in use may be anything.
        """
        ...

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: Any, scale: float) -> Tensor:
        """o_TQD: packed query t sees the tokens of its sequence up to its own position, and no other slot."""
        ...

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        """For the result. `groups`: query heads that share a key/value head."""
        ...


class Kvlab:
    """Ours, on a CPU."""

    tiles = True  # it reads head-major pools too
    make_view = staticmethod(view.make_view)
    kernel_name = staticmethod(attention.kernel_name)

    def __init__(self) -> None:
        self._launch: attention.Attention | None = None  # the last one's, whose layers have most in common

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: view.View, scale: float) -> Tensor:
        launch = self._launch
        if launch is None or not launch.serves(q_TQD, k_SHD, view, scale):
            launch = self._launch = attention.Attention(q_TQD, k_SHD, view, scale)
        return launch(q_TQD, k_SHD, v_SHD)

    def on(self, device: str) -> Kernels:
        if device == "cpu":
            return self
        from kvlab.engine.attentions.gpu import KvlabGpu  # and with it triton

        return KvlabGpu(device)


def build_kernels(node: dict[str, Any], device: str = "cpu", tile: int = 1) -> Kernels:
    """What the node `attention` names, on that device: its method `on` gives it, and without one it is for CPUs.

    tile: of the layout; above 1 keys and values are k_UHWD, which a kernel reads that says `tiles = True`.
    UsageError: it is not whole, cannot run there, or does not read that layout.
    """
    built: Kernels = build(node, key="attention._target_")
    if not hasattr(built, "on") and device != "cpu":
        raise UsageError(f"attention._target_={node['_target_']}: it has no method `on`, and so runs with device=cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device={device}: torch {torch.__version__} sees no such device; allowed here is cpu")
    if hasattr(built, "on"):
        built = built.on(device)
    missing = [name for name in ("make_view", "attend", "kernel_name") if not hasattr(built, name)]
    if missing:
        raise UsageError(f"attention._target_={node['_target_']}: it lacks {', '.join(missing)}")
    if tile > 1 and not getattr(built, "tiles", False):
        given = node.get("name", node["_target_"])
        raise UsageError(
            f"layout=head_major with attention={given}: it reads token_major; allowed is layout=token_major"
        )
    return built

"""torch's attention over equally long rows in one call: what a program without memory management would do.

B sequences, L tokens of each, S slots, Q query heads, H key/value heads, G query heads a key/value head, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.memory import view
from kvlab.memory.view import Rows


class DenseSdpa:
    """Decode over rows that lie one after another, token-major.

    The query heads of a key/value head go as queries: with enable_gqa torch is slower.
    """

    make_view = staticmethod(view.make_view)

    def attend(self, q_BQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: Rows, scale: float) -> Tensor:
        batch, length = len(view.length_B), int(view.length_B[0])
        heads, head_dim = k_SHD.shape[1:]
        k_BLHD, v_BLHD = (x[: batch * length].view(batch, length, heads, head_dim) for x in (k_SHD, v_SHD))
        q_BHGD = q_BQD.view(batch, heads, -1, head_dim)
        o_BHGD = scaled_dot_product_attention(q_BHGD, k_BLHD.transpose(1, 2), v_BLHD.transpose(1, 2), scale=scale)
        return o_BHGD.reshape(q_BQD.shape)

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        return "torch sdpa, all sequences in one call"

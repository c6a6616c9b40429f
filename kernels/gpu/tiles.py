"""What kernels over both geometries share: where the tokens of a tile lie, and reading them.

N tokens of a tile, D head size padded to a power of two.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slots_of_tile(place, token_N, seen_N, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """slot_N, int64: of a row from its first slot `place` (BLOCK 0), or of blocks through the table row at `place`.

    One tile may reach over many small blocks, all of whose entries are fetched at once. MASKED: no entry is read
    for a token that is not seen.
    """
    if BLOCK == 0:
        slot_N = place + token_N.to(tl.int64)
    else:
        if MASKED:
            block_N = tl.load(place + token_N // BLOCK, mask=seen_N, other=0)
        else:
            block_N = tl.load(place + token_N // BLOCK)
        slot_N = block_N.to(tl.int64) * BLOCK + token_N % BLOCK
    return slot_N


@triton.jit
def load_tile(p_ND, seen_N, o_D, DIM: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr):
    """Keys or values; zeros beyond the head size and, where MASKED, for what is not seen."""
    WHOLE: tl.constexpr = o_D.shape[0] == DIM
    if MASKED and WHOLE:
        b_ND = tl.load(p_ND, mask=seen_N[:, None], other=0.0)
    elif MASKED:
        b_ND = tl.load(p_ND, mask=seen_N[:, None] & (o_D < DIM)[None, :], other=0.0)
    elif WHOLE:
        b_ND = tl.load(p_ND)
    else:
        b_ND = tl.load(p_ND, mask=(o_D < DIM)[None, :], other=0.0)
    if UPCAST:
        b_ND = b_ND.to(tl.float32)
    return b_ND

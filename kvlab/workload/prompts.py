"""Token ids and sampling seeds of a request, from (seed, id) alone.

Raw PCG64 output is used, which numpy keeps the same in every version; its distributions may change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# They stand where an id does, and are none: of the tokens that all requests begin with,
SHARED = 1 << 40  # as a share of each prompt,
SYSTEM = 3 << 40  # or before each prompt


def draw_prompt(
    seed: int, id: int, length: int, vocab: int | None, share: float = 0.0
) -> tuple[int, NDArray[np.int32] | None]:
    """(sampling seed below 2^31, token ids [length] in [0, vocab), read-only; None without a vocabulary).

    The first share x length ids, rounded, are those that every request of the seed begins with; the others are
    what they would be without. With share 0 a shorter prompt of the same (seed, id) is the beginning of a longer one.
    """
    bits = np.random.PCG64(np.random.SeedSequence((seed, id)))
    sampling_seed = int(bits.random_raw()) >> 33
    if vocab is None:
        return sampling_seed, None
    ids = _below(vocab, bits, length)
    if common := round(share * length):
        ids[:common] = _below(vocab, np.random.PCG64(np.random.SeedSequence((seed, SHARED))), common)
    ids.flags.writeable = False
    return sampling_seed, ids


def _below(vocab: int, bits: np.random.PCG64, length: int) -> NDArray[np.int32]:
    # Of 64 random bits, the remainder favours small ids by less than one part in 10^13.
    return (bits.random_raw(length) % np.uint64(vocab)).astype(np.int32)

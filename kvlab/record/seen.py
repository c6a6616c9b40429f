"""What the recorder looks at: a scheduler, and the places in which its sequences are."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.tally import Tally

Column = NDArray[np.int64]


class Places(Protocol):
    """Columns, of which `order` are in use, oldest admission first. What they mean: kvlab.engine.lanes.Lanes."""

    id: Column
    row: Column
    stored: Column
    known: Column
    prompt: Column
    room: Column
    final: Column
    asks: NDArray[np.bool_]

    def __len__(self) -> int: ...

    @property
    def order(self) -> Column: ...


class Seen(Protocol):
    """A scheduler, seen from outside."""

    tally: Tally

    @property
    def lanes(self) -> Places: ...

    @property
    def queued(self) -> int: ...

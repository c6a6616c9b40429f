"""What becomes of the tokens of a sequence that gives way."""

from __future__ import annotations

from kvlab.engine.axes.protocols import How


class Recompute:
    """Forget them; they are computed again when it is back."""

    def how(self, seq: int, length: int, hit: int) -> How:
        return "recompute"


class Swap:
    """Copy them to the host and back."""

    def how(self, seq: int, length: int, hit: int) -> How:
        return "swap"


class Never:
    """Nobody gives way: admission must have left everybody room, and who cannot grow fails."""

    def how(self, seq: int, length: int, hit: int) -> How:
        return "none"


class CostBased:
    """Swap where moving all tokens to the host and back is estimated to take less than computing what no cache gives.

    Two operations for each parameter and token at `tflops` (10^12 a second), attention left out; the bytes of the
    tokens twice at `host_gb_s` (10^9 bytes a second, one way), and `copy_us` for each of the two copies.
    """

    def __init__(self, tflops: float, host_gb_s: float, copy_us: float, *, parameters: int, token_bytes: int) -> None:
        if not (tflops > 0 and host_gb_s > 0 and copy_us >= 0):
            given = f"tflops={tflops}, host_gb_s={host_gb_s}, copy_us={copy_us}"
            raise ValueError(f"{given}: allowed are numbers above 0, for copy_us 0 too")
        self.compute_s = 2 * parameters / (tflops * 1e12)  # for each token
        self.move_s = 2 * token_bytes / (host_gb_s * 1e9)
        self.copy_s = 2 * copy_us * 1e-6

    def how(self, seq: int, length: int, hit: int) -> How:
        moving_s = length * self.move_s + self.copy_s
        return "swap" if moving_s < (length - hit) * self.compute_s else "recompute"

"""How long a request will become: the only way in which a strategy or an admission learns an expected length."""

from __future__ import annotations

from kvlab.engine.axes.history import History
from kvlab.errors import UsageError
from kvlab.request import Request


class Limit:
    """Expect what the client declared."""

    def expect(self, request: Request) -> int:
        return request.limit


class Pow2:
    """Expect the prompt and the next power of two of the true output (Kwon et al., SOSP 2023, 6.1)."""

    def expect(self, request: Request) -> int:
        output = _true_output(request, "pow2")
        return min(request.prompt_len + (1 << max(0, output - 1).bit_length()), request.limit)


class Oracle:
    """Expect the true length, which only a trace knows."""

    def expect(self, request: Request) -> int:
        return request.prompt_len + _true_output(request, "oracle")


class Quantile:
    """Expect an output that `share` of the requests done last did not exceed; the limit before `least` are done."""

    def __init__(self, share: float = 0.9, window: int = 1000, least: int = 20) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share={share}: allowed is 0 to 1")
        self.share, self.history = share, History(window, least)

    def expect(self, request: Request) -> int:
        output = self.history.at(self.share)
        return request.limit if output is None else min(request.prompt_len + output, request.limit)

    def learn(self, request: Request, output_len: int) -> None:
        self.history.add(output_len)


def _true_output(request: Request, forecast: str) -> int:
    if request.output_len is None:
        raise UsageError(
            f"forecast={forecast}: request {request.id} generates until end-of-text, so its output length is not "
            "known beforehand; allowed here is limit or quantile"
        )
    return request.output_len

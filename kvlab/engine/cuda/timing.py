"""How long the parts of a step take: on the host's clock, and on the device's between marks in its stream."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from kvlab.engine.cuda.platform import Platform

DEVICE_PARTS = ("moves", "view", "model", "sample")


class StepTimes:
    """Adds up nanoseconds by part. The host's time of a part that only asks for work is the asking."""

    def __init__(self, platform: Platform, ns: dict[str, int], device_ns: dict[str, int]) -> None:
        self.platform, self.ns, self.device_ns = platform, ns, device_ns
        device_ns.update(dict.fromkeys(DEVICE_PARTS, 0))
        self._host: list[tuple[str, int]] = []
        self._device: list[tuple[str, Any]] = []

    def begin(self, part: str) -> None:
        """From here on it is that part; on the device too, until `asked`."""
        self._host.append((part, perf_counter_ns()))
        if part in self.device_ns:
            self._device.append((part, self.platform.mark()))

    def asked(self) -> None:
        """The last work of the step went into the stream."""
        self._device.append(("", self.platform.mark()))

    def end(self) -> None:
        """The step is over on both."""
        self._host.append(("", perf_counter_ns()))
        for (part, begin), (_, stop) in zip(self._host, self._host[1:], strict=False):
            self.ns[part] += stop - begin
        for (part, mark), (_, later) in zip(self._device, self._device[1:], strict=False):
            self.device_ns[part] += self.platform.between_ns(mark, later)
        self._host, self._device = [], []

"""Figures of what kvlab costs, looked at as they are drawn."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from kvlab.harness import bench_figures

SIZES = [10**power for power in range(3, 7)]
FIGURES = {
    "simulator": lambda path: bench_figures.simulator(
        [{"requests": size, "requests_per_cpu_s": 8e4, "peak_bytes": 4e7} for size in SIZES], 3_896, path
    ),
    "bookkeeping": lambda path: bench_figures.bookkeeping(
        [(name, size, 16, 60.0, 9.0) for name in ("paged", "prefix") for size in SIZES], 16, path
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_ticks_are_numbers(name, tmp_path, monkeypatch):
    """Logarithmic axes said $\\mathdefault{10^{3}}$, one label over the other: our figures show no formulas."""
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (drawn.append(self), save(self, *args, **more)))
    FIGURES[name](tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size
    for axes in drawn[0].axes:
        if axes.get_xscale() == "log":
            labels = [label.get_text() for label in axes.get_xticklabels()]
            assert {f"{size:,}" for size in SIZES} <= set(labels)
        shown = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        assert not [text for text in shown if "$" in text]

"""Ticks of logarithmic axes: matplotlib's own are formulas, which our figures (look.STYLE) show as they are written."""

from __future__ import annotations

from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullFormatter


def plain_ticks(axis: Axis) -> None:
    """Numbers in full on a logarithmic axis: at every power of ten, with 2 and 5 between them where they are few."""
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axis.set_minor_formatter(NullFormatter())

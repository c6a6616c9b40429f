"""How figures look: the parts of the pool, colours, and room for words. Needs no matplotlib.

The same thing has the same colour in every figure; the colours stay apart for colour-blind readers: the parts of the
pool by their lightness alone, so in grey print too (L* 20, 39, 49, 58, 77, 81, 91), strategies by Tol's muted set.
"""

from __future__ import annotations

import colorsys
import textwrap
from math import ceil
from typing import Any

from kvlab.harness.groups import Row

PARTS = {  # of the pool, in the order in which they are stacked: name, colour; the last two are what is external
    "token_state": ("token state (stored)", "#08306B"),
    "reservation": ("reservation (will be used)", "#4A96D0"),
    "internal": ("internal (never used)", "#F2B134"),
    "cached": ("cached (may be used again)", "#0F6B3A"),
    "rounded": ("external (rounded up)", "#80736A"),
    "free": ("external (free)", "#E6E6E6"),
}
ADDRESSES = {  # what may lie at an address; the same colours
    **PARTS,
    "mapped_unused": ("mapped, unused", "#DDBFD6"),
    "unbacked": ("no memory there", "#FFFFFF"),
}
DARK = ("token_state", "cached", "rounded")  # parts on which words are white
RARE = ("cached", "rounded")  # not shown where there is none of it
STRATEGIES = {"contiguous": "#CC6677", "paged": "#332288", "vattention": "#44AA99"}
OTHERS = ("#DDCC77", "#882255", "#88CCEE", "#117733", "#AA4499", "#999933")
MARKERS = "os^Dv*XP"  # of lines that may cross, beside their colours
DARKEST, LIGHTEST = 0.28, 0.66  # lightness of a strategy's first and last tint
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666", "axes.linewidth": 0.8,
    "xtick.color": "#333333", "ytick.color": "#333333", "figure.dpi": 200, "figure.constrained_layout.use": True,
    "text.parse_math": False,
}  # fmt: skip
WIDTH = 8.0  # inches: 1,600 pixels, twice what a README shows
LABEL, TITLE, LINE, HANDLE = 40, 90, 116, 8  # characters: of a bar's label, of a title, across, of a legend's handle


def strategy_of(row: Row) -> str:
    return str(row.runs[0].config.get("strategy"))


def strategy_colours(rows: list[Row]) -> dict[str, str]:
    """A colour for each strategy; the built-in ones always have theirs."""
    names = sorted({strategy_of(row) for row in rows} - STRATEGIES.keys())
    return STRATEGIES | {name: OTHERS[i % len(OTHERS)] for i, name in enumerate(names)}


def row_colours(rows: list[Row]) -> dict[str, str]:
    """row.short -> colour: the strategy's, or a tint of it where the strategy has several."""
    colours, placements = strategy_colours(rows), _placements(rows)
    return {
        short: tint(colours[strategy], place, len(shorts))
        for strategy, shorts in placements.items()
        for place, short in enumerate(shorts)
    }


def tint(colour: str, place: int, count: int) -> str:
    """The colour itself, or one of `count` from dark to light."""
    if count == 1:
        return colour
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, _, saturation = colorsys.rgb_to_hls(red, green, blue)
    lightness = DARKEST + (LIGHTEST - DARKEST) * place / (count - 1)
    return "#" + "".join(f"{round(255 * part):02X}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))


def wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))


def legend_columns(labels: list[str]) -> int:
    """As many columns as fit, evenly filled: what a legend does not fit into is cut off."""
    for lines in range(1, len(labels)):
        columns = [labels[i : i + lines] for i in range(0, len(labels), lines)]
        if sum(HANDLE + max(map(len, column)) for column in columns) <= LINE:
            return ceil(len(labels) / lines)
    return 1


def mark(row: Row) -> str:
    """Behind a time that is not to be trusted, as in the table."""
    return "" if row.timed else " (*)"


def _placements(rows: list[Row]) -> dict[str, list[str]]:
    """The different row.short of each strategy, in order."""
    found: dict[str, list[str]] = {}
    for row in rows:
        shorts = found.setdefault(strategy_of(row), [])
        if row.short not in shorts:
            shorts.append(row.short)
    return found

"""The memory map: what lay at each address of the pool over time, a panel for each run on one time axis."""

from __future__ import annotations

from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from kvlab.engine.capacity import size_text
from kvlab.harness.groups import Row
from kvlab.harness.look import ADDRESSES
from kvlab.harness.results import Run
from kvlab.harness.series import axis_end, one_seed, over_time
from kvlab.harness.timelines import facts, goes_on, legend_of_patches, moment, say_below_title, stacked, time_label
from kvlab.record.memory_map import FILE

COLUMNS = 1600  # of a panel's picture; moments are drawn as wide as they lasted
FORM = ("time_s", "state", "pool_bytes", "names")  # of the file


class Map(NamedTuple):
    time_s: NDArray[np.float64]  # [moments], ends of the steps that were looked at
    state_NA: NDArray[np.uint8]  # [moments, addresses], an index of ADDRESSES; addresses from the pool's first byte on
    pool_bytes: int

    def upto(self, end: float) -> NDArray[np.uint8]:
        """[addresses, COLUMNS] over evenly spaced time from 0 to `end`; len(ADDRESSES) behind the last moment."""
        middle_C = (np.arange(COLUMNS) + 0.5) * end / COLUMNS
        index_C = np.searchsorted(self.time_s, middle_C)
        over = np.full((1, self.state_NA.shape[1]), len(ADDRESSES), np.uint8)
        return np.concatenate((self.state_NA, over))[index_C].T


def load_map(run: Run) -> Map | None:
    """None where the run left none, or one that cannot be read."""
    try:
        with (run.path / FILE).open("rb") as file, np.load(file) as arrays:
            time_s, state_NA, pool_bytes, names = (arrays[name] for name in FORM)
    except (OSError, ValueError, KeyError, BadZipFile):
        return None
    if not len(time_s) or set(names.tolist()) - ADDRESSES.keys():
        return None
    order = np.array([list(ADDRESSES).index(name) for name in names.tolist()], np.uint8)
    return Map(time_s, order[state_NA], int(pool_bytes))


def with_map(rows: list[Row]) -> list[Row]:
    """The rows of which every run that is shown could have one: all their seeds, or none."""
    return [row for row in rows if all((run.path / FILE).exists() for run in row.runs)]


def memory_maps(rows: list[Row]) -> Figure | None:
    """None where the maps cannot be read."""
    runs = one_seed(rows)
    maps = [found for run in runs if (found := load_map(run))]
    if len(maps) < len(rows):
        return None
    end = axis_end([over_time(run).done for run in runs])
    pictures = [found.upto(end) for found in maps]
    seen = sorted({int(code) for picture in pictures for code in np.unique(picture)} - {len(ADDRESSES)})
    figure, panels = stacked(rows, 1.75)
    for axes, row, run, found, picture in zip(panels, rows, runs, maps, pictures, strict=True):
        line = over_time(run)
        _panel(axes, picture, end, found.pool_bytes)
        say_below_title(axes, facts(row, run, line, runs))
        if line.done > end:
            goes_on(axes, end, found.pool_bytes / 2, moment(line.done, runs))
    panels[-1].set_xlabel(time_label(runs))
    names = [list(ADDRESSES.values())[code] for code in seen]
    patches = [Patch(facecolor=colour, edgecolor="#888888", linewidth=0.5, label=name) for name, colour in names]
    legend_of_patches(figure, patches)
    figure.supylabel("address in the pool", size=9)
    return figure


def _panel(axes: Axes, picture: NDArray[np.uint8], end: float, pool_bytes: int) -> None:
    """The first address is at the bottom."""
    colours = ListedColormap([colour for _, colour in ADDRESSES.values()] + ["none"])
    axes.imshow(
        picture,
        cmap=colours,
        vmin=-0.5,
        vmax=len(ADDRESSES) + 0.5,
        extent=(0, end, 0, pool_bytes),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_yticks([0, pool_bytes / 2, pool_bytes], ["0", "", size_text(pool_bytes)])

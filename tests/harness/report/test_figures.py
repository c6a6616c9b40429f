"""Figures: that each draws what it says; how they look is for eyes."""

from __future__ import annotations

import csv

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kvlab.harness import figures, look, map_figures, series, timelines
from kvlab.harness.groups import group
from kvlab.harness.results import load


def rows(directory):
    return group(load(directory)[0])


def test_bars_end_at_the_medians(sweep):
    (axes,) = figures.waste_bars(rows(sweep)).axes
    widths = np.array([[bar.get_width() for bar in container] for container in axes.containers])
    assert widths.T[1] == pytest.approx([90, 2, 1, 7])
    assert widths.sum(axis=0) == pytest.approx([100, 100, 100])


def test_what_is_rounded_up_is_told_from_what_is_free(write_run):
    """A pool that was held to 97 % looked three quarters free."""
    for seed, usage in enumerate((0.97, 0.90, 0.95)):
        waste = {"reservation": 0.01, "internal": 0.20, "cached": 0.02, "external": 0.73}
        path = write_run(f"v{seed}", "vattention", seed, pool_usage=usage, utilization=0.04, waste=waste)
    shares = figures.shares(rows(path.parent)[0])
    assert (shares["rounded"], shares["free"]) == pytest.approx((0.70, 0.03))
    labels = [text.get_text() for text in figures.waste_bars(rows(path.parent)).legends[0].get_texts()]
    assert labels[-2:] == ["external (rounded up)", "external (free)"]


def test_a_series_splits_what_is_external_by_what_is_held(write_run):
    path = write_run("v", "vattention")
    (run,) = load(path)[0]
    run.steps["held"][3] += run.steps["external"][3] / 4
    shares = series.over_time(run).shares
    external = shares["external"][3]
    assert (shares["rounded"][3], shares["free"][3]) == pytest.approx((external / 4, external * 3 / 4))
    assert np.delete(shares["rounded"], 3) == pytest.approx(0)


def test_maps_share_one_time_axis_and_fill_the_pool(sweep):
    table = rows(sweep)
    figure = timelines.pool_over_time(table)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    edges, shares = series.over_time(series.one_seed(table)[0])
    assert len(edges) == len(shares["internal"]) + 1
    assert edges[0] == pytest.approx(0)
    assert sum(shares[part] for part in look.PARTS) == pytest.approx(np.ones(len(edges) - 1))


def write_map(path, names, states, pool_bytes=4194304):
    """Moments at 0.1 s, 0.2 s ... of a pool of as many addresses as a state has."""
    time_s = np.arange(1, len(states) + 1) / 10
    state = np.array(states, np.uint8)
    np.savez(path / "memory_map.npz", time_s=time_s, state=state, names=np.array(names), pool_bytes=pool_bytes)


def test_a_memory_map_shows_each_address_from_the_bottom_over_the_time_it_was_so(write_run):
    path = write_run("p", "paged")
    write_map(path, ["free", "token_state"], [[1, 0], [1, 1], [0, 0]])
    (run,) = load(path)[0]
    colours = list(look.ADDRESSES)
    picture = map_figures.load_map(run).upto(0.4)
    assert picture.shape == (2, map_figures.COLUMNS)
    at = [picture[:, int(x * map_figures.COLUMNS)] for x in (0.1, 0.4, 0.6, 0.9)]  # of 0.4 s
    stored, free, over = colours.index("token_state"), colours.index("free"), len(colours)
    assert [moment.tolist() for moment in at] == [[stored, free], [stored, stored], [free, free], [over, over]]


def test_memory_maps_share_one_time_axis_and_name_the_states_that_occur(write_run):
    for name, states in (("contiguous", [[3, 1], [3, 1]]), ("paged", [[3, 2], [2, 2]])):
        write_map(write_run(name, name), ["unbacked", "internal", "free", "token_state"], states)
    table = rows(write_run("without", "vattention").parent)
    figure = map_figures.memory_maps(map_figures.with_map(table))
    assert [axes.get_title() for axes in figure.axes] == ["contiguous", "paged"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    (legend,) = figure.legends
    named = [look.ADDRESSES[name][0] for name in ("token_state", "internal", "free")]
    assert [text.get_text() for text in legend.get_texts()] == named
    assert {"4 MiB", "address in the pool"} <= set(words(figure))


def test_a_map_that_is_cut_short_is_left_out(write_run, tmp_path):
    path = write_run("p")
    (path / "memory_map.npz").write_bytes(b"PK\x03\x04 half of a file")
    paths, notes = figures.draw(rows(path), tmp_path / "figures")
    assert "memory_maps.png" not in [picture.name for picture in paths]
    assert any("engine.memory_map" in note for note in notes)


def test_parts_of_the_pool_differ_in_grey_print_too():
    def luminance(colour):
        red, green, blue = matplotlib.colors.to_rgb(colour)
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    grey = sorted(116 * luminance(colour) ** (1 / 3) - 16 for _, colour in look.ADDRESSES.values())
    assert np.diff(grey).min() > 3.5
    parts = sorted(116 * luminance(colour) ** (1 / 3) - 16 for _, colour in look.PARTS.values())
    assert np.diff(parts).min() > 8


def test_panels_show_runs_of_one_seed(write_run):
    """Each row's own median run was of another seed: panels side by side had served different requests."""
    for seed, (slow, fast) in enumerate(((3.0, 10.0), (1.0, 30.0), (2.0, 20.0), (2.5, 40.0))):
        path = write_run(f"c{seed}", "contiguous", seed, tokens_per_s=slow)
        if seed < 3:
            write_run(f"p{seed}", "paged", seed, tokens_per_s=fast)
    table = rows(path.parent)
    assert [run.seed for run in series.one_seed(table)] == [2, 2]
    assert "seed 2" in timelines.pool_over_time(table).axes[-1].get_xlabel()


def test_a_series_without_its_columns_is_left_out(write_run, sweep):
    (write_run("old", "other") / "steps.csv").write_text("step,time_s\n0,1.0\n")
    (write_run("new", "another") / "steps.csv").write_text(",".join(series.SERIES) + "\n")
    shown, _ = series.first_setting(rows(sweep))
    assert [row.short for row in shown] == ["contiguous", "paged", "vattention"]


def test_built_in_strategies_keep_their_colours_beside_others(write_run, sweep):
    write_run("n", "new")
    colours = look.row_colours(rows(sweep))
    assert {name: colours[name] for name in look.STRATEGIES} == look.STRATEGIES
    assert colours["new"] not in look.STRATEGIES.values()


def test_rows_of_one_strategy_differ_in_tint_and_keep_it_in_every_setting(write_run):
    for size in (8, 16, 32):
        for length in (512, 1024):
            path = write_run(f"{size}-{length}", "paged", 0, {"block_size": size, "max_len": length})
    table = rows(path.parent)
    assert [row.short for row in table[:3]] == ["paged, block 8", "paged, block 16", "paged, block 32"]
    assert len(set(look.row_colours(table).values())) == len(look.row_colours(table)) == 3


def test_over_time_compares_one_setting_and_says_what_is_left_out(write_run, sweep):
    write_run("long", "paged", 0, {"max_len": 4096})
    shown, notes = series.first_setting(rows(sweep))
    assert [row.short for row in shown] == ["contiguous", "paged", "vattention"]
    assert any("max_len 512" in note for note in notes)


def test_one_slow_row_does_not_squeeze_the_others(write_run, sweep):
    path = write_run("slow", "slow")
    steps = list(csv.reader((path / "steps.csv").read_text().splitlines()))
    for line in steps[1:]:
        line[1:3] = [str(100 * float(cell)) for cell in line[1:3]]
    with (path / "steps.csv").open("w", newline="") as file:
        csv.writer(file).writerows(steps)
    table = rows(sweep)
    slowest, second = sorted((series.over_time(run).done for run in series.one_seed(table)), reverse=True)[:2]
    figure = timelines.pool_over_time(table)
    assert figure.axes[0].get_xlim() == pytest.approx((0, 1.2 * second))
    assert any(f"to {slowest:,.1f} s" in text for text in words(figure))
    assert any(f"shown: seed 0, done at {slowest:,.1f} s" in text for text in words(figure))
    assert any("(medians of 3 seeds); shown: seed 0" in text for text in words(figure))
    assert series.axis_end([3.0, 5.0, 9.9]) == 9.9
    assert series.axis_end([5.0]) == 5.0


def test_a_first_step_of_prompts_is_marked_where_it_is_long(write_run):
    path = write_run("a")
    (run,) = load(path)[0]
    assert "prompts" not in " ".join(words(timelines.pool_over_time(rows(path))))
    lines = list(csv.DictReader((path / "steps.csv").read_text().splitlines()))
    lines[0] |= {"prefill_tokens": "99", "dt_s": "0.3"}
    for line in lines:
        line["time_s"] = str(float(line["time_s"]) + 0.3 - run.steps["dt_s"][0])
    with (path / "steps.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    assert " prompts" in words(timelines.pool_over_time(rows(path)))


def test_bars_say_how_many_seeds_stand_behind_them(write_run, sweep):
    def said() -> list[str]:
        table = rows(sweep)
        return words(figures.throughput(table, look.row_colours(table)))

    assert "bar: median, line: least to most, of n = 3 seeds" in said()
    write_run("n", "new")
    assert {"bar: median, line: least to most, of n seeds", "new (n\u00a0=\u00a01)"} <= set(said())


@pytest.mark.parametrize("name", ["a rather long name of a strategy with many words " * 4, "x" * 150, "$cost$ of $x^"])
def test_no_word_is_cut_off(write_run, sweep, name):
    """Long labels took the bars' room, were cut off at the edge, and matplotlib warned."""
    for size in (16, 2**20):
        write_run(f"n{size}", name, 0, {"page_group_bytes": size}, timing_valid=False, tokens_per_s=12345678.9)
    table = rows(sweep)
    colours = look.row_colours(table)
    with matplotlib.rc_context(look.STYLE):
        for figure in (
            figures.waste_bars(table),
            figures.throughput(table, colours),
            timelines.utilization(table, colours),
            timelines.pool_over_time(table),
        ):
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            box = figure.bbox.padded(1)
            for text in texts(figure):
                extent = text.get_window_extent(canvas.get_renderer())
                assert box.x0 <= extent.x0 <= extent.x1 <= box.x1, text.get_text()
                assert box.y0 <= extent.y0 <= extent.y1 <= box.y1, text.get_text()


def test_a_name_in_a_script_that_the_font_lacks_warns_nobody(write_run, tmp_path):
    paths, _ = figures.draw(rows(write_run("a", "\u7b56\u7565")), tmp_path / "figures")
    assert len(paths) == 4


def texts(figure):
    """Every text that is drawn."""
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [axes.title, axes._left_title, axes.xaxis.label, *axes.texts]
        for index, (low, high), labels in (
            (0, sorted(axes.get_xlim()), axes.get_xticklabels()),
            (1, sorted(axes.get_ylim()), axes.get_yticklabels()),
        ):
            found += [label for label in labels if low <= label.get_position()[index] <= high]
    return [text for text in found if text.get_visible() and text.get_text()]


def words(figure):
    FigureCanvasAgg(figure).draw()
    return [text.get_text() for text in texts(figure)]

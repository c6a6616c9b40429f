"""`kvlab reproduce NAME`: published values beside ours, one line each, with the verdict and the reason."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.errors import UsageError
from kvlab.harness import output

if TYPE_CHECKING:
    from kvlab.reproduce.article import Article
    from kvlab.reproduce.claims import Line

PAPERS = ("sosp23", "sglang", "vattention")
NAMES = ("article", *PAPERS, "all", "curves", "pages")
HEAD = ["claim", "unit", "published", "measured", "deviation", "tolerance", "verdict"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help=f"what to reproduce: {', '.join(NAMES)}; all: every paper; pages: see --out")
    add("--only", metavar="FIGURE,...", help="these figures alone")
    add("--seeds", metavar="SEED,...", default="0,1,2", help="of a paper's runs; the median is taken (0,1,2)")
    add("--json", action="store_true", help="print a list of {figure, cell, published, measured, ...}")
    add(
        "--out",
        metavar="FILE",
        type=Path,
        help="also write the table to FILE, in Markdown; of a paper .csv, .tex, .png and .json beside it. pages: FILE "
        "is the scoreboard of the .json beside it, whose pages are written again without a run",
    )


def run(args: argparse.Namespace) -> int:
    """0, or 1 if something is contradicted that no explanation is known for."""
    if args.name not in NAMES:
        raise UsageError(f"{args.name!r}: nothing of that name to reproduce; allowed is {', '.join(NAMES)}")
    output.check(args.out)
    return {"article": _article, "curves": _curves, "pages": _pages}.get(args.name, _papers)(args)


def _curves(args: argparse.Namespace) -> int:
    from kvlab.harness import reproduce_curves
    from kvlab.harness.compose import Composer
    from kvlab.reproduce import curves
    from kvlab.reproduce.frame import Lab

    seeds, chosen = _seeds(args.seeds), _figures(args.only, list(curves.NAMES)) or list(curves.NAMES)
    panels = []
    with Composer() as composer:
        lab = Lab(lambda overrides: composer.compose(overrides).config, seeds)
        for name in chosen:
            panels.append(curves.measure(lab, name))
            _say(f"{name}: measured")
    picture = (args.out or Path("curves.md")).with_suffix(".png").name
    text = reproduce_curves.markdown(panels, _command(args), seeds, picture)
    if args.out:
        reproduce_curves.write(args.out, text, panels)
    print(json.dumps(reproduce_curves.records(panels), indent=1) if args.json else text)
    return 0


def _pages(args: argparse.Namespace) -> int:
    from kvlab.harness import reproduce_board

    if args.out is None:
        raise UsageError("pages: needs --out FILE, the scoreboard; the pages and their .json lie beside it")
    print(reproduce_board.write_again(args.out))
    return 0


def _article(args: argparse.Namespace) -> int:
    from kvlab.reproduce import article

    done = article.reproduce(_figures(args.only, list(article.FIGURES)))
    text = markdown(args.name, done)
    if args.out:
        output.write(args.out, text)
    print(json.dumps([line.record() for line in done.lines], indent=1) if args.json else text)
    return _end([line.claim.cell for line in done.lines if line.surprising])


def _papers(args: argparse.Namespace) -> int:
    from kvlab.harness import reproduce_board
    from kvlab.harness.compose import Composer
    from kvlab.reproduce import papers
    from kvlab.reproduce.frame import Lab
    from kvlab.reproduce.kept import Kept

    names, seeds = PAPERS if args.name == "all" else (args.name,), _seeds(args.seeds)
    only = _figures(args.only, [figure for name in names for figure in papers.FIGURES[name]])
    with Composer() as composer:
        lab = Lab(lambda overrides: composer.compose(overrides).config, seeds)
        chosen = {name: [figure for figure in papers.FIGURES[name] if not only or figure in only] for name in names}
        done = [papers.reproduce(name, lab, figures, _say) for name, figures in chosen.items() if figures]
    kept = Kept(_command(args), seeds, done)
    text = reproduce_board.page(kept)
    if args.out:
        reproduce_board.write_page(args.out, text, kept)
    records = [outcome_line.record() for one in done for outcome in one.outcomes for outcome_line in outcome.lines]
    print(json.dumps(records, indent=1) if args.json else text)
    return _end([o.name for one in done for o in one.outcomes if o.verdict == "missed" and not o.missed_because])


def _end(surprises: list[str]) -> int:
    if surprises:
        print(f"contradicted, and not known why: {', '.join(surprises)}", file=sys.stderr)
    return 1 if surprises else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _command(args: argparse.Namespace) -> str:
    only = f" --only {args.only}" if args.only else ""
    return f"kvlab reproduce {args.name}{only} --seeds {args.seeds}"


def _seeds(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise UsageError(f"--seeds {text}: allowed is different whole numbers, as in 0,1,2")
    return tuple(map(int, words))


def markdown(name: str, article: Article) -> str:
    """The table, the reasons, and how each value was measured."""
    from kvlab.harness.table import grid

    lines = article.lines
    table = grid(HEAD, [_cells(line) for line in lines], left={"claim", "unit", "verdict"})
    parts = [
        f"# `kvlab reproduce {name}`",
        f"Published: {article.title}. Measured: by asking the strategies. {article.setting}",
        table.rstrip(),
        _tally(lines),
        *[f"**{_name(line)}**: {line.claim.why} ({_how(line)})" for line in lines if line.within is False],
        article.comparison,
        "## How each was measured",
        _methods(lines),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(only: str | None, allowed: list[str]) -> list[str]:
    names = only.split(",") if only is not None else []
    wrong = [name for name in names if name not in allowed]
    if wrong:
        raise UsageError(f"--only {','.join(wrong)}: no such figure; allowed is {', '.join(allowed)}")
    return names


def _cells(line: Line) -> list[str]:
    claim, measured = line.claim, line.measured
    digits = 1 if claim.tolerance else 0  # shares are printed with one
    return [
        _name(line),
        claim.unit,
        f"{claim.published:,.{digits}f}",
        f"{measured.value:,.{2 * digits}f}" if measured else "-",
        "-" if line.deviation is None else f"{line.deviation:+,.{3 * digits}f}" if line.deviation else "0",
        f"{claim.tolerance:g}",
        line.verdict,
    ]


def _name(line: Line) -> str:
    return f"{line.claim.figure}: {line.claim.cell}"


def _how(line: Line) -> str:
    return line.measured.how if line.measured else "nothing measures it yet"


def _methods(lines: list[Line]) -> str:
    """A bullet for each way of measuring, with the claims it served."""
    served: dict[str, list[str]] = {}
    for line in lines:
        served.setdefault(_how(line), []).append(line.claim.cell)
    return "\n".join(f"- {'; '.join(cells)}: {how}" for how, cells in served.items())


def _tally(lines: list[Line]) -> str:
    verdicts = [line.verdict for line in lines]
    kinds = ("reproduced", "contradicted", "waits for a later part")
    return "; ".join(f"{verdicts.count(kind)} {kind}" for kind in kinds if kind in verdicts) + "."

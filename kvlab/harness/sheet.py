"""A table of texts, written as Markdown for people and as LaTeX (booktabs) for a paper."""

from __future__ import annotations

import re
from typing import NamedTuple

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


class Sheet(NamedTuple):
    head: list[str]
    body: list[list[str]]
    left: set[str]  # headings whose columns are words: flush left; the others are flush right
    notes: list[str]  # below the table, a line each

    def markdown(self) -> str:
        return grid(self.head, self.body, self.left) + "".join(f"\n{note}\n" for note in self.notes)

    def latex(self, caption: str) -> str:
        """A table environment; needs the package booktabs. A caption in Markdown loses its backquotes and stars."""
        columns = "".join("l" if name in self.left else "r" for name in self.head)
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\small",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *(_line(cells) for cells in [self.head]),
            r"\midrule",
            *(_line(cells) for cells in self.body),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {escaped(note)}" for note in self.notes),
            rf"\caption{{{escaped(re.sub(r'[`*]', '', caption))}}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def grid(head: list[str], body: list[list[str]], left: set[str]) -> str:
    """A Markdown table, padded; columns outside `left` are flush right."""
    body = [[cell.replace("|", "\\|") for cell in line] for line in body]
    widths = [max(3, *(len(line[i]) for line in [head, *body])) for i in range(len(head))]
    flush = [str.ljust if name in left else str.rjust for name in head]
    rule = ["-" * width if name in left else "-" * (width - 1) + ":" for name, width in zip(head, widths, strict=True)]
    lines = [head, rule, *body]
    return "".join(
        "| " + " | ".join(put(cell, width) for put, cell, width in zip(flush, line, widths, strict=True)) + " |\n"
        for line in lines
    )


def escaped(text: str) -> str:
    """What LaTeX prints as this text; a number and its unit stay together, ranges have an en dash."""
    plain = re.sub(r"(?<=\d)-(?=\d)", "--", "".join(SPECIAL.get(letter, letter) for letter in text))
    return re.sub(r"(?<=\d) (?=(?:\\%|[KMG]iB)\b|\\%)", "~", plain)


def _line(cells: list[str]) -> str:
    text = " & ".join("--" if cell == "-" else escaped(cell) for cell in cells)
    guard = "{}" if text.startswith(("[", "*")) else ""  # which the line's end before it would take as its argument
    return rf"{guard}{text} \\"

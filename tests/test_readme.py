"""What the README shows is what the commands made."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_its_table_is_the_committed_report():
    def tables(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("| ") and "[" in line and "MiB" in line]

    readme = tables((ROOT / "README.md").read_text())
    assert len(readme) >= 3
    assert readme == tables((ROOT / "experiments/demo/report.md").read_text())


def test_every_link_leads_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            assert target.startswith("http") or (path.parent / target).exists(), (path.name, target)

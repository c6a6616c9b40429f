"""Makes the quantile tables in kvlab/workload/tables from the public trace files.

Each table holds facts about a trace, a few thousand numbers, and says where the trace is published and
under which licence. Run again with the same files, it writes the same bytes:
python experiments/make_quantiles.py --traces DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kvlab.workload import quantiles, trace

SOURCES = {
    "azure_conv": {
        "file": "azure_2023/AzureLLMInferenceTrace_conv.csv",
        "source": "AzureLLMInferenceTrace_conv.csv",
        "published": "github.com/Azure/AzurePublicDataset, b469a113",
        "licence": "CC-BY-4.0",
        "attribution": "Azure Public Dataset, Microsoft; Patel et al., Splitwise, ISCA 2024",
    },
    "sharegpt": {
        "file": "lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz",
        "source": "sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "published": "github.com/project-etalon/etalon, d5f18de1",
        "licence": "Apache-2.0",
        "attribution": "the authors of etalon",
    },
    "arxiv": {
        "file": "lengths/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz",
        "source": "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        "published": "github.com/microsoft/vidur, 7d475133",
        "licence": "MIT",
        "attribution": "Copyright (c) Microsoft Corporation",
    },
}
CHANGES = "rows reduced to quantiles: prompt length, and output length in 20 groups by prompt length"


def table(traces: Path, name: str) -> dict[str, Any]:
    about = SOURCES[name]
    rows = trace.read(traces / about["file"])
    facts = {key: about[key] for key in ("source", "published", "licence", "attribution")} | {"changes": CHANGES}
    return {"name": name, **facts, **quantiles.build(rows.prompt, rows.output)}


def as_text(table: dict[str, Any]) -> str:
    """JSON with one list of numbers a line, so that a change shows as a short difference."""
    lines = [f"{json.dumps(key)}: {lists(value)}" for key, value in table.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def lists(value: Any) -> str:
    if isinstance(value, list) and isinstance(value[0], list):
        return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the quantile tables of the named traces.")
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public trace files")
    arguments = parser.parse_args()
    for name in SOURCES:
        target = quantiles.table_folder() / f"{name}.json"
        target.write_text(as_text(table(arguments.traces, name)))
        print(f"{name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

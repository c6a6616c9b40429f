"""A Hugging Face checkpoint in bfloat16 of the GGUF file that `kvlab fetch model` keeps.

Runs inside transformers' environment: python checkpoint.py FILE.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # A model that came out of a GGUF file counts as quantized, and cannot be saved; one with its weights can.
    config = read.config
    config.dtype = torch.bfloat16
    config.__dict__.pop("quantization_config", None)
    fresh = LlamaForCausalLM(config).to(torch.bfloat16)
    fresh.load_state_dict(read.state_dict())
    fresh.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

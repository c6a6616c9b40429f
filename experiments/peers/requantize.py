"""A GGUF file in bfloat16 of the one that `kvlab fetch model` keeps, for llama.cpp.

Runs inside llama.cpp's environment: python requantize.py FILE.gguf TARGET.gguf
"""

from __future__ import annotations

import sys


def main(source: str, target: str) -> None:
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
    parameters.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), parameters):
        sys.exit(f"{source}: could not be written as {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])

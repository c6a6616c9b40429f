"""From the `model` part of a configuration to a model: `smollm2`, `tiny`, or what lies at `model.path`.

Of published models only the sizes are to be had: enough for `shape_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvlab.errors import UsageError
from kvlab.model.shape import Shape, check_dtype
from kvlab.model.shapes import Published

if TYPE_CHECKING:
    from kvlab.model.llama import Llama
    from kvlab.model.tokenizer import Tokenizer
    from kvlab.model.weights import Weights


class Source(Protocol):
    """Where a model comes from. Opening one reads its sizes, not its weights, and does not need torch."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def dtypes(self) -> tuple[str, ...]: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    def begin(self) -> None:
        """Begin, in a thread, what `weights` is going to need; what fails there is raised by it."""

    def weights(self, dtype: str) -> Weights: ...


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to run."""

    model: Llama
    source: Source

    @property
    def shape(self) -> Shape:
        return self.source.shape

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None: the model came without one. UsageError: it is damaged."""
        return self.source.tokenizer

    @property
    def name(self) -> str:
        return self.source.name


def load(config: Mapping[str, Any], dtype: str, device: str = "cpu") -> Loaded:
    """The model of `config` on that device. UsageError: unknown, missing, damaged, or not to be had in `dtype`."""
    return load_from(usable_source(config, dtype), dtype, device)


def load_from(source: Source, dtype: str, device: str = "cpu") -> Loaded:
    """The model of a usable source. UsageError: damaged."""
    from kvlab.model.llama import Llama
    from kvlab.model.weights import onto

    return Loaded(Llama(source.shape, onto(device, source.weights(dtype))), source)


def usable_source(config: Mapping[str, Any], dtype: str) -> Source:
    """One that has weights in `dtype`, which are not read, and without torch. UsageError as for load."""
    source = open_source(config)
    if isinstance(source, Published):
        source.refuse()
    check_dtype(dtype, source.dtypes)
    return source


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The sizes of the model of `config`; reads no weights, imports no torch. UsageError as for load."""
    return open_source(config).shape


def open_source(config: Mapping[str, Any]) -> Source:
    """UsageError: unknown name, nothing usable at the path, or not fetched yet."""
    if config.get("path") is not None:
        return _at(Path(str(config["path"])).expanduser())
    name = config.get("name")
    if name == "tiny":
        from kvlab.model.tiny import Tiny

        return Tiny(config)
    if name == "smollm2":
        return _smollm2()
    return Published(config)


def _at(path: Path) -> Source:
    if path.is_dir():
        from kvlab.model.checkpoint import Checkpoint

        return Checkpoint(path)
    if path.suffix == ".gguf":
        from kvlab.model.gguf import GgufFile

        return GgufFile(path, path.stem)
    what = "neither a directory nor a .gguf file" if path.exists() else "no such file or directory"
    raise UsageError(f"model.path={path}: {what}; allowed is a Llama checkpoint directory or a .gguf file")


def _smollm2() -> Source:
    from kvlab.model.fetch import SHA256, model_path
    from kvlab.model.gguf import GgufFile

    path = model_path()
    if not path.exists():
        raise UsageError(f"model=smollm2: {path} is not there; `kvlab fetch model` downloads it (93 MB)")
    return GgufFile(path, "smollm2", SHA256)

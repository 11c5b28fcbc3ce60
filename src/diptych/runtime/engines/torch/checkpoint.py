"""Checkpoints as named tensors: Hugging Face directories of safetensors here, GGUF files in `gguf_file`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from diptych.errors import Finding, InvalidInput
from diptych.runtime.engines.torch.shape import Shape, read_json, read_shape

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Checkpoint(Protocol):
    """A model's shape and its tensors by their Hugging Face names, each read when it is asked for."""

    @property
    def shape(self) -> Shape:
        """What config.json says."""
        ...

    @property
    def place(self) -> Path:
        """Where it lies."""
        ...

    def names(self) -> frozenset[str]:
        """The tensors that are there."""
        ...

    def tensor(self, name: str, dims: tuple[int, ...]) -> torch.Tensor:
        """One tensor of floats. Raises InvalidInput where it is missing or not of these dimensions."""
        ...

    def digest(self) -> str:
        """A digest of the bytes of the weights."""
        ...

    def frequency_factors(self) -> torch.Tensor | None:
        """What each rotary frequency is divided by, where the checkpoint lists it (GGUF does)."""
        ...


@dataclass(frozen=True, slots=True)
class SafetensorsCheckpoint:
    """A directory with config.json and one model.safetensors, or several with an index. `files` says where each tensor is."""

    place: Path
    shape: Shape
    files: Mapping[str, Path]

    @classmethod
    def open(cls, directory: Path) -> SafetensorsCheckpoint:
        """Raises InvalidInput: no checkpoint there, or a config that this engine cannot follow."""
        if not directory.is_dir():
            expected = "a directory with config.json and *.safetensors, or a .gguf file"
            raise InvalidInput(Finding(str(directory), "is no directory", expected))
        return cls(directory, read_shape(directory), dict(_located(directory)))

    def names(self) -> frozenset[str]:
        return frozenset(self.files)

    def tensor(self, name: str, dims: tuple[int, ...]) -> torch.Tensor:
        path = self.files.get(name)
        if path is None:
            raise InvalidInput(Finding(str(self.place), f"lacks the tensor {name}", f"one of {list(dims)}"))
        try:
            with safe_open(path, framework="pt") as file:
                found: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InvalidInput(Finding(f"{path}: {name}", f"cannot be read: {str(error)[:100]}")) from None
        return checked(found, dims, f"{path}: {name}")

    def digest(self) -> str:
        whole = xxhash.xxh3_128()
        for path in sorted(set(self.files.values())):
            with path.open("rb") as file:
                while piece := file.read(4 << 20):
                    whole.update(piece)
        return whole.hexdigest()

    def frequency_factors(self) -> torch.Tensor | None:
        return None


def checked(tensor: torch.Tensor, dims: tuple[int, ...], where: str) -> torch.Tensor:
    """The tensor, if it is one of floats with these dimensions."""
    if tuple(tensor.shape) != dims:
        raise InvalidInput(Finding(where, f"is {list(tensor.shape)}", f"{list(dims)}, as config.json says"))
    if tensor.dtype not in FLOATS:
        raise InvalidInput(Finding(where, f"is {tensor.dtype}", "float32, bfloat16 or float16"))
    return tensor


def _located(directory: Path) -> Iterator[tuple[str, Path]]:
    """Every tensor and the file that holds it."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        yield from _indexed(directory, index, read_json(index).get("weight_map"))
        return
    found = sorted(directory.glob("*.safetensors"))
    if not found:
        raise InvalidInput(Finding(str(directory), "holds no *.safetensors", "model.safetensors beside config.json"))
    for path in found:
        yield from ((name, path) for name in _names(path))


def _indexed(directory: Path, index: Path, names: Any) -> Iterator[tuple[str, Path]]:
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise InvalidInput(Finding(f"{index}: weight_map", "is no object of names", "tensor name to file name"))
    files = sorted(set(names.values()))
    away = [file for file in files if Path(file).name != file or not (directory / file).is_file()]
    if away:
        raise InvalidInput(
            [Finding(f"{index}: weight_map", f"names {file[:80]!r}", "a file beside it") for file in away]
        )
    there = {file: set(_names(directory / file)) for file in files}
    lost = [name for name, file in names.items() if name not in there[file]]
    if lost:
        raise InvalidInput(
            [Finding(str(directory / names[name]), f"lacks {name}", "what the index says") for name in lost[:20]]
        )
    yield from ((name, directory / file) for name, file in names.items())


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise InvalidInput(
            Finding(str(path), f"cannot be read: {str(error)[:100]}", "a whole safetensors file")
        ) from None

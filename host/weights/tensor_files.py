"""Files of tensors by name: ``.safetensors``, ``.npz``, and PyTorch's with tensors only.

Nothing in them is unpickled: ``.npz`` files have no objects, and PyTorch reads tensors and numbers
alone (``weights_only=True``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError, UserError
from fpgapipe.files import open_file, write_output
from fpgapipe.host.data.npz_file import MAX_BYTES, NpzFile, npz_bytes
from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_values import array
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A tensor of a file, whose values are read when they are asked for.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
        Type of the elements as numpy has it; BF16 is read as FP32.
    read : callable
        Gives the values.
    """

    shape: Shape
    dtype: np.dtype[Any]
    read: Callable[[], NDArray[Any]]


@dataclass(frozen=True)
class TensorFormat:
    """A format of files of tensors.

    Attributes
    ----------
    opened : callable
        Gives the tensors of a file by name, in a context in which they can be read.
    packed : callable
        Gives the contents of a file of tensors.
    """

    opened: Callable[[Path], contextlib.AbstractContextManager[dict[str, Entry]]]
    packed: Callable[[Mapping[str, NDArray[Any]]], bytes]


def is_tensor_file(path: Path) -> bool:
    """Whether a file's suffix is that of a format of tensors."""
    return path.suffix.lower() in TENSOR_FORMATS


def open_tensors(path: Path) -> contextlib.AbstractContextManager[dict[str, Entry]]:
    """Open a file of tensors, whose suffix tells its format.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged, or holds other things than tensors, or if the
        library for it is not installed.
    """
    return TENSOR_FORMATS[path.suffix.lower()].opened(path)


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a file of tensors, whose suffix tells its format, whole or not at all.

    Raises
    ------
    UserError
        If it cannot be written; an earlier file of that name is kept then.
    """
    write_output(path, TENSOR_FORMATS[path.suffix.lower()].packed(tensors))


# ---------------------------------------------------------------------- .npz


@contextlib.contextmanager
def _open_npz(path: Path) -> Iterator[dict[str, Entry]]:
    with NpzFile(path) as archive:

        def entry(name: str) -> Entry:
            return Entry(*archive.header(name), lambda: archive.array(name))

        yield {name: entry(name) for name in sorted(archive.names)}


# ---------------------------------------------------------------------- .safetensors

_BF16 = "BF16"
_ELEMENTS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
"""Numpy's name of each type of elements that it has."""


@contextlib.contextmanager
def _open_safetensors(path: Path) -> Iterator[dict[str, Entry]]:
    library = require("safetensors", f"reading {path}")
    with open_file(path, MAX_BYTES) as opened:  # which refuses pipes and the like
        try:
            file = library.safe_open(path, "np")
        except Exception as error:  # SafetensorError, and OSError of a file without bytes
            raise FileError(path, [f"cannot be read as .safetensors: {_line(error)}"]) from None

        @functools.cache
        def whole() -> dict[str, Any]:
            return dict(library.deserialize(opened.read()))

        entries, faults = {}, []
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            part = file.get_slice(name)
            kind, shape = str(part.get_dtype()), tuple(part.get_shape())
            if kind == _BF16:
                entries[name] = Entry(shape, np.dtype("<f4"), partial(_of_bf16, whole, name, shape))
            elif kind in _ELEMENTS:
                read = partial(file.get_tensor, name)
                entries[name] = Entry(shape, np.dtype(_ELEMENTS[kind]), read)
            else:
                faults.append(f"tensor {name} has elements of type {kind}, which are not read")
        if faults:
            raise FileError(path, faults[:20])
        yield entries


def _of_bf16(whole: Callable[[], dict[str, Any]], name: str, shape: Shape) -> NDArray[Any]:
    """Values of BF16, which numpy lacks, as FP32: the upper halves of its bits."""
    high = np.frombuffer(whole()[name]["data"], "<u2").astype(np.uint32) << 16
    return high.view(np.float32).reshape(shape)


def _safetensors_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    require("safetensors", "writing .safetensors")
    save = importlib.import_module("safetensors.numpy").save
    _refuse_complex(tensors, ".safetensors")
    values = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    packed: bytes = save(values, metadata={"format": "pt"})  # which Hugging Face's readers ask for
    return packed


def _refuse_complex(tensors: Mapping[str, NDArray[Any]], suffix: str) -> None:
    if wrong := [name for name, value in tensors.items() if value.dtype.kind == "c"]:
        raise UserError(f"{suffix} has no complex numbers, which {wrong[0]} has; write a .pt")


# ---------------------------------------------------------------------- PyTorch

SAFE_TORCH = "2.6"
"""First version of PyTorch whose ``weights_only=True`` has no known way to run code."""

_WITHIN = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts keep the tensors."""


@contextlib.contextmanager
def _open_torch(path: Path) -> Iterator[dict[str, Entry]]:
    torch = require("torch", f"reading {path}")
    if torch.__version__ < SAFE_TORCH:  # it compares versions, not texts
        raise UserError(
            f"reading {path} needs torch {SAFE_TORCH} or newer, since a file can run code in "
            f"{torch.__version__} (CVE-2025-32434); take a .safetensors or .npz"
        )
    with open_file(path, MAX_BYTES) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old formats
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # of pickle, of zip files, of PyTorch
            why = f"cannot be read as tensors alone: {_line(error)}"
            raise FileError(path, [why]) from None
    tensors = _tensors_in(torch, path, found)
    yield {name: _torch_entry(torch, path, name, value) for name, value in tensors.items()}


def _tensors_in(torch: Any, path: Path, found: Any) -> dict[str, Any]:
    """The tensors of a file, which may be under a key beside what a training script keeps."""
    if isinstance(found, dict):
        inner = [found[key] for key in _WITHIN if isinstance(found.get(key), dict)]
        if len(inner) == 1:
            found = inner[0]
    if not isinstance(found, dict) or not found:
        raise FileError(path, ["holds no tensors by name"])
    faults = [
        f"holds {type(value).__name__} under {str(name)!r}, not a tensor under a name"
        for name, value in found.items()
        if not isinstance(value, torch.Tensor) or not isinstance(name, str)
    ]
    if faults:
        raise FileError(path, faults[:20])
    return found


def _torch_entry(torch: Any, path: Path, name: str, value: Any) -> Entry:
    def read() -> NDArray[Any]:
        try:
            return array(torch, value)
        except Unsupported as error:
            raise FileError(path, [f"tensor {name}: {error}"]) from None

    dtype = torch.float32 if value.dtype is torch.bfloat16 else value.dtype
    try:
        kind = torch.empty(0, dtype=dtype).numpy().dtype
    except (RuntimeError, TypeError):
        what = f"tensor {name} has elements of type {value.dtype}, which are not read"
        raise FileError(path, [what]) from None
    return Entry(tuple(value.shape), kind, read)


def _torch_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    torch = require("torch", "writing .pt")
    file = io.BytesIO()
    torch.save({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}, file)
    return file.getvalue()


def _line(error: Exception) -> str:
    """The first sentence of an error, without the advice that follows it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0][:200]


_TORCH = TensorFormat(_open_torch, _torch_bytes)

TENSOR_FORMATS = {
    ".safetensors": TensorFormat(_open_safetensors, _safetensors_bytes),
    ".npz": TensorFormat(_open_npz, npz_bytes),
    **dict.fromkeys((".pt", ".pth", ".bin"), _TORCH),
}
"""The formats by the suffixes of files, in small letters."""

"""The formats of files that networks are read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.errors import FileError
from fpgapipe.network.graph import Graph
from fpgapipe.plugins import Registry, instance_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Frontend:
    """A format of files.

    Attributes
    ----------
    what : str
        What such a file is, with an article; empty for what is known, but always refused.
    read : callable
        Returns the network, given the path of a file and the samples in a batch, or None if none
        are asked for. It raises a `UserError` if it cannot.
    """

    what: str
    read: Callable[[Path, int | None], Graph]


def _onnx(path: Path, batch: int | None) -> Graph:
    from fpgapipe.network.frontends.onnx.onnx_model import read_onnx

    return read_onnx(path, batch)


def _exported(path: Path, batch: int | None) -> Graph:
    from fpgapipe.network.frontends.torch.torch_program import read_exported

    return read_exported(path, batch)


def _csv(path: Path, batch: int | None) -> Graph:
    from fpgapipe.network.frontends.profile import CSV_COLUMNS, read_csv_profile
    from fpgapipe.network.frontends.scalesim import columns_of, read_scalesim
    from fpgapipe.network.frontends.text import csv_rows

    header = next((cells for _, cells in csv_rows(path)), [])
    if columns_of(header):
        return read_scalesim(path, batch)
    if {cell.lower() for cell in header} & set(CSV_COLUMNS[1:]):
        return read_csv_profile(path, batch)
    raise FileError(
        path,
        [
            "line 1: is neither a SCALE-Sim topology ('Layer name, IFMAP Height, ...' or "
            f"'Layer, M, N, K') nor a table of times ('{','.join(CSV_COLUMNS)}')"
        ],
    )


def _pipedream(path: Path, batch: int | None) -> Graph:
    from fpgapipe.network.frontends.profile import read_pipedream

    return read_pipedream(path, batch)


FRONTENDS: Registry[Frontend] = Registry(
    "fpgapipe.frontends",
    "file format",
    {
        "onnx": Frontend("an ONNX model", _onnx),
        "csv": Frontend("a SCALE-Sim topology or a table of per-layer times", _csv),
        "txt": Frontend("a PipeDream profile", _pipedream),
        "pt2": Frontend("", _exported),
    },
    instance_of(Frontend, read=Graph),
)
"""The formats by the suffixes of files, in small letters and without the dot."""


def listed() -> dict[str, str]:
    """Kinds of files that can be read, by their suffixes with the dot."""
    whats = {f".{name}": FRONTENDS[name].what for name in FRONTENDS.usable()}
    return {suffix: what for suffix, what in whats.items() if what}

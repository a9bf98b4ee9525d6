"""Packages that offer something by entry points, as if they were installed."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

from fpgapipe import plugins
from fpgapipe.host.backends import torch_reference
from fpgapipe.lowering.units import registry
from fpgapipe.lowering.units.layers import function_units
from fpgapipe.network.frontends.onnx import onnx_translation
from fpgapipe.network.frontends.torch import torch_registry
from fpgapipe.network.operators import others
from fpgapipe.partition.cost.work import POINTWISE_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REGISTERS = (
    *(registry._MAKERS, function_units._FORMULAS, torch_reference._RUNS, others._OTHERS),
    *(torch_registry.HANDLERS, onnx_translation.HANDLERS),
)
"""Registers to which modules of operators add functions and classes."""


@contextlib.contextmanager
def forgotten(site: Path) -> Iterator[None]:
    """Forget afterwards the modules under a folder, and what they have registered."""
    costs = dict(POINTWISE_OPERATIONS)
    try:
        yield
    finally:
        files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
        names = {name for name, file in files.items() if file and file.startswith(str(site))}
        for register in REGISTERS:
            for key in [key for key, each in register.items() if each.__module__ in names]:
                del register[key]
        for key in set(POINTWISE_OPERATIONS) - set(costs):
            del POINTWISE_OPERATIONS[key]
        for name in names:
            del sys.modules[name]


@contextlib.contextmanager
def left_out() -> Iterator[list[str]]:
    """Gather the messages about what is left out, as if none had come before."""
    plugins._leave_out.cache_clear()
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    plugins.logger.addHandler(handler)
    try:
        yield found
    finally:
        plugins.logger.removeHandler(handler)


def install(
    site: Path, package: str, files: Mapping[str, str], entries: Mapping[str, Mapping[str, str]]
) -> None:
    """Write a package of version 1.0 into a folder, which is or gets on Python's path.

    Parameters
    ----------
    site : Path
        Folder that packages are found in.
    package : str
        Name of the package, and of its folder.
    files : mapping of str to str
        Text of each file in the package's folder.
    entries : mapping of str to mapping of str to str
        For each group of entry points, their names and values.
    """
    folder, info = site / package, site / f"{package}-1.0.dist-info"
    for each in (folder, info):
        each.mkdir(parents=True)
    for name, text in {"__init__.py": "", **files}.items():
        (folder / name).write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line
        for group, offered in entries.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in offered.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

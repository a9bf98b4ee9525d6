"""An example of a build, for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def how_to_build(folder: Path) -> str:
    """Part of a message: an example of a complete command line that makes a build."""
    line = "fpgapipe build --board u280 --devices 2 --array 8x8 --batch 8"
    return f"'{line} -o {folder}' makes one"

"""Frequencies of the clocks behind links, which packages keep for ``fpgapipe bringup``."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fpgapipe.host.package.target import Target

CLOCKS = "clocks.json"
"""The file, beside the folders of the devices."""

_MAX_BYTES = 1 << 20


def clocks_text(targets: Sequence[Target]) -> str:
    """Return the file: for each device the frequency of each link's PHY clock, in Hz.

    Aurora has a clock of its own. Plain pins have half the clock of the board at the other end.
    """
    found = []
    for target in targets:
        ends = {end.number: end.user_clock_hz for end in target.links}
        for end in target.pin_links:
            other = target.index + (1 if end.number or not target.index else -1)
            ends[end.number] = targets[other].clk_hz / 2
        found.append([ends[number] for number in sorted(ends)])
    return json.dumps({"phy_clock_hz": found}) + "\n"


def read_clocks(package: Path, num_links: Sequence[int]) -> list[list[float]] | None:
    """Read the frequencies; None if the build was not packaged.

    Parameters
    ----------
    package : Path
        Folder of a build's packages.
    num_links : sequence of int
        Number of links of each device.

    Raises
    ------
    UserError
        If the file is not as `clocks_text` writes it.
    """
    path = min(package.glob(f"*/{CLOCKS}"), default=None)
    if path is None:
        return None
    try:
        found = json.loads(read_text(path, _MAX_BYTES))["phy_clock_hz"]
        clocks = [[float(clock_hz) for clock_hz in device] for device in found]
        if not all(math.isfinite(each) and each > 0 for device in clocks for each in device):
            raise ValueError
        if [len(device) for device in clocks] != list(num_links):
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(
            f"{path} does not have the frequency of each link's clock, above 0 Hz; package the "
            "build anew"
        ) from None
    return clocks

"""Frequencies of clocks on boards: of links, which packages keep, and of cores, read back."""

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
    from fpgapipe.partition.plan import Plan

PACKAGE = "package"
"""Name of the folder of packages in a build."""

CLOCKS = "clocks.json"
"""The file, beside the folders of the devices."""

ACHIEVED = "achieved_clocks.json"
"""The clocks of a device's bitstream, in its folder, as xclbinutil writes them."""

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


def core_clocks(package: Path, plan: Plan) -> list[float]:
    """Clock frequency of each device's core on its board, Hz.

    It is that of the plan, unless the package's bitstream was made with another one: v++ lowers the
    clock of kernels that miss their timing. The clock of ``ap_clk`` is the one of type DATA.
    Source: SectionClockFrequencyTopology.cxx in Xilinx/XRT; whole MHz, written as text.

    Parameters
    ----------
    package : Path
        Folder of a build's packages.
    plan : Plan
        Plan of the build.

    Raises
    ------
    UserError
        If a file with the clocks of a bitstream has no such clock.
    """
    found = []
    for number, node in enumerate(plan.nodes):
        planned_hz = node.spec.clk_hz
        path = min(package.glob(f"*/{number}-*/{ACHIEVED}"), default=None)
        achieved_hz = planned_hz if path is None else _achieved(path)
        found.append(planned_hz if abs(achieved_hz - planned_hz) < 1e6 else achieved_hz)
    return found


def other_clocks(package: Path, plan: Plan) -> dict[str, float]:
    """Clocks of `core_clocks` that are not those of the plan, Hz, by the devices' names."""
    pairs = zip(plan.nodes, core_clocks(package, plan), strict=True)
    return {node.device: hz for node, hz in pairs if hz != node.spec.clk_hz}


def _achieved(path: Path) -> float:
    """Clock of a bitstream's kernels, Hz."""
    try:
        clocks = json.loads(read_text(path, _MAX_BYTES))["clock_freq_topology"]["m_clock_freq"]
        (found,) = [float(each["m_freq_Mhz"]) for each in clocks if each["m_type"] == "DATA"]
        if not 1 <= found <= 1e4:
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(
            f"{path} does not have one clock of type DATA, 1..10,000 MHz, as 'xclbinutil "
            "--dump-section CLOCK_FREQ_TOPOLOGY:JSON' writes it; remove the file, and run 'make' "
            "in its folder again"
        ) from None
    return found * 1e6

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
    The file has the folder of each device's board, too.
    """
    nodes = sorted((node for target in targets for node in target.nodes), key=lambda it: it.index)
    folders = {node.index: target.folder for target in targets for node in target.nodes}
    found = []
    for target in nodes:
        ends = {end.number: end.user_clock_hz for end in target.links}
        for end in target.pin_links:
            other = target.index + (1 if end.number or not target.index else -1)
            ends[end.number] = nodes[other].clk_hz / 2
        found.append([ends[number] for number in sorted(ends)])
    where = [folders[target.index] for target in nodes]
    return json.dumps({"phy_clock_hz": found, "folders": where}) + "\n"


def read_clocks(package: Path, num_links: Sequence[int]) -> list[list[float]] | None:
    """Read the frequencies; None if the build was not packaged.

    Parameters
    ----------
    package : Path
        Folder of a build's packages.
    num_links : sequence of int
        Number of links of each device that have a PHY.

    Raises
    ------
    UserError
        If the file is not as `clocks_text` writes it.
    """
    read = _read(package)
    if read is None:
        return None
    clocks, _ = read
    if [len(device) for device in clocks] != list(num_links):
        raise _unusable(package)
    return clocks


def _read(package: Path) -> tuple[list[list[float]], list[Path] | None] | None:
    """Clocks of links, and the folder of each device's board, which older packages lack."""
    path = min(package.glob(f"*/{CLOCKS}"), default=None)
    if path is None:
        return None
    try:
        found = json.loads(read_text(path, _MAX_BYTES))
        clocks = [[float(clock_hz) for clock_hz in device] for device in found["phy_clock_hz"]]
        if not all(math.isfinite(each) and each > 0 for device in clocks for each in device):
            raise ValueError
        names = found.get("folders")
        if names is None:
            return clocks, None
        places = {each.name: each for each in path.parent.iterdir() if each.is_dir()}
        return clocks, [places[name] for name in names]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _unusable(package) from None


def _unusable(package: Path) -> UserError:
    path = min(package.glob(f"*/{CLOCKS}"))
    return UserError(
        f"{path} does not have the frequency of each link's clock, above 0 Hz, and the folder of "
        "each device; package the build anew"
    )


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
    read = _read(package)
    folders = read[1] if read else None
    if folders is not None and len(folders) != len(plan.nodes):
        raise _unusable(package)
    for number, node in enumerate(plan.nodes):
        planned_hz = node.spec.clk_hz
        if folders is None:
            path = min(package.glob(f"*/{number}-*/{ACHIEVED}"), default=None)
        else:
            made = folders[number] / ACHIEVED
            path = made if made.exists() else None
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

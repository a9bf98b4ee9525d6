"""Checks of boards before anything runs on them, as ``fpgapipe bringup`` does them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fpgapipe.host.build.build import Build, open_build
from fpgapipe.host.driver.bringup import Bringup, Checked
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import Devices
from fpgapipe.host.driver.link_clocks import LinkClock
from fpgapipe.host.driver.transport import Transport
from fpgapipe.host.package.clocks import PACKAGE, core_clocks, read_clocks
from fpgapipe.host.terminal.result import Result
from fpgapipe.host.transports.opening import transports_of
from fpgapipe.host.transports.without_boards import SIMULATED, without_boards

if TYPE_CHECKING:
    from fpgapipe.host.driver.devices import End


@dataclass(frozen=True)
class BroughtUp(Result):
    """Checks of the devices of a build.

    Attributes
    ----------
    checks : tuple of Checked
    """

    RECORDS: ClassVar[str] = "checks"

    checks: tuple[Checked, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing has failed."""
        return all(each.passed for each in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The checks, and whether all passed."""
        return {"passed": self.passed, "checks": [vars(each) for each in self.checks]}

    def shown(self) -> Iterator[str]:
        """A line for each check."""
        return map(_line, self.checks)


def _line(checked: Checked) -> str:
    word = "ok" if checked.passed else "FAILED"
    return f"{word:6}  {checked.check:16} {checked.device}: {checked.detail}"


def bringup(
    folder: Path | str,
    backend: str,
    cluster_file: Path | str | None = None,
    *,
    watch_s: float = 1.0,
    on_line: Callable[[str], object] = lambda text: None,
) -> BroughtUp:
    """Check the devices of a build, one step after the other; what their memory holds is lost.

    Parameters
    ----------
    folder : path
        Folder of the build.
    backend : str
        How devices are reached, or ``sim`` or ``model`` for none.
    cluster_file : path, optional
        File that says at which addresses boards are reached.
    watch_s : float
        Seconds for which packets go over each link.
    on_line : callable
        Is told the outcome of each check as soon as it is known.
    """
    opening = transports_of(backend, cluster_file)
    build = open_build(folder)
    parts = build.pipeline.parts
    ways = opening(build.plan) if opening else without_boards(build, backend)
    names = [node.device for node in build.plan.nodes]
    drivers = [
        CoreDriver(name, part.core, way) for name, part, way in zip(names, parts, ways, strict=True)
    ]
    devices = Devices(drivers, build.pipeline.wiring)
    found = []
    try:
        sizes = [part.memory_bytes for part in parts]
        for checked in Bringup(devices, sizes, watch_s, link_clocks(build, ways)).run():
            found.append(checked)
            on_line(_line(checked))
    finally:
        devices.close()
    return BroughtUp(tuple(found))


def link_clocks(build: Build, ways: Sequence[Transport]) -> dict[End, LinkClock]:
    """Clocks at all ends of links that have a PHY; a simulated one has the core's clock."""
    with_phy = [
        [number for number, link in enumerate(core.links) if link.has_phy] for core in build.cores
    ]
    simulated = [getattr(way, "kind", way.name) in SIMULATED for way in ways]
    num_links = [len(links) for links in with_phy]
    read = None if all(simulated) else read_clocks(build.folder / PACKAGE, num_links)
    found = {}
    for number, core_hz in enumerate(core_clocks(build.folder / PACKAGE, build.plan)):
        for position, link in enumerate(with_phy[number]):
            packaged_hz = read[number][position] if read else None
            phy_hz = core_hz if simulated[number] else packaged_hz
            found[number, link] = LinkClock(core_hz, phy_hz)
    return found

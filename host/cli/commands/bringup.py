"""``fpgapipe bringup``: checks boards step by step before anything runs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.host.cli.commands.run import BOARDS, transports_of
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.options import build_folder, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.host.build.build import Build
    from fpgapipe.host.driver.bringup import Checked
    from fpgapipe.host.driver.devices import End
    from fpgapipe.host.driver.link_clocks import LinkClock
    from fpgapipe.host.driver.transport import Transport


SIMULATED = ("sim", "model")
"""Backends without boards, and what agents say of devices that they simulate."""


@command("bringup", example="fpgapipe bringup out/digits-cnn --backend model")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(), callback=build_folder)
@click.option(
    "--backend",
    type=click.Choice([*SIMULATED, *BOARDS]),
    required=True,
    help="How devices are reached: boards, or simulated devices or models to see what is checked.",
)
@click.option(
    "--cluster",
    "cluster_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="File that says at which addresses boards are reached.",
)
@click.option(
    "--watch",
    "watch_s",
    type=ranges.WATCH,
    default=1.0,
    show_default=True,
    help="Seconds for which packets go over each link and its errors are counted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bringup(
    folder: str, backend: str, cluster_file: str | None, watch_s: float, as_json: bool
) -> int:
    """Check the devices of the build in DIR, one step after the other.

    The steps are: the loaded core is that of the build; registers keep what is written; so does
    memory; the core reads and writes the memory that the host sees; each link comes up, carries a
    packet each way, has no errors, and its PHY has the clock that the package was made for. What
    fails is said with what to do about it, and the exit code is 1. What the memory of the devices
    holds is lost.
    """
    from pathlib import Path

    from fpgapipe.host.build.build import open_build
    from fpgapipe.host.driver.bringup import Bringup
    from fpgapipe.host.driver.core_driver import CoreDriver
    from fpgapipe.host.driver.devices import Devices
    from fpgapipe.host.terminal.console import print_json

    opening = transports_of(backend, cluster_file)
    build = open_build(Path(folder))
    parts = build.pipeline.parts
    ways = opening(build.plan) if opening else without_boards(build, backend)
    names = [stage.device for stage in build.plan.stages]
    drivers = [
        CoreDriver(name, part.core, way) for name, part, way in zip(names, parts, ways, strict=True)
    ]
    devices = Devices(drivers, build.pipeline.wiring)
    found = []
    try:
        sizes = [part.memory_bytes for part in parts]
        checks = Bringup(devices, sizes, watch_s, link_clocks(build, ways))
        for checked in checks.run():
            found.append(checked)
            if not as_json:
                _print(checked)
    finally:
        devices.close()
    passed = all(checked.passed for checked in found)
    if as_json:
        print_json({"passed": passed, "checks": [vars(checked) for checked in found]})
    return 0 if passed else 1


def link_clocks(build: Build, ways: Sequence[Transport]) -> dict[End, LinkClock]:
    """Clocks at all ends of links. A simulated PHY has the core's clock, also behind an agent."""
    from fpgapipe.host.driver.link_clocks import LinkClock
    from fpgapipe.host.package.clocks import read_clocks
    from fpgapipe.host.package.package import PACKAGE

    num_links = [len(core.links) for core in build.cores]
    simulated = [getattr(way, "kind", way.name) in SIMULATED for way in ways]
    read = None if all(simulated) else read_clocks(build.folder / PACKAGE, num_links)
    found = {}
    for number, stage in enumerate(build.plan.stages):
        core_hz = stage.core.clk_hz
        for link in range(num_links[number]):
            packaged_hz = read[number][link] if read else None
            phy_hz = core_hz if simulated[number] else packaged_hz
            found[number, link] = LinkClock(core_hz, phy_hz)
    return found


def without_boards(build: Build, backend: str) -> list[Transport]:
    """Simulated devices, or models, with the memory that the checks need."""
    from fpgapipe.host.driver.allocation import PAGE_BYTES
    from fpgapipe.host.driver.bringup import TRIED_BYTES

    cores, wiring = build.cores, build.pipeline.wiring
    sizes = [
        -(-max(part.memory_bytes, TRIED_BYTES) // PAGE_BYTES) * PAGE_BYTES
        for part in build.pipeline.parts
    ]
    if backend == "model":
        from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport

        models = ModelledCluster(cores, sizes, wiring)
        return [ModelledTransport(models, number) for number in range(len(cores))]
    from fpgapipe.host.transports.simulated import simulated_transports

    return [*simulated_transports(cores, sizes, build.memories, wiring, build.wires)]


def _print(checked: Checked) -> None:
    word = "ok" if checked.passed else "FAILED"
    print(f"{word:6}  {checked.check:16} {checked.device}: {checked.detail}", flush=True)

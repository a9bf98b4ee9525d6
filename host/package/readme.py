"""The README of a packaged device: what it is, the commands, and which tools know the board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe import __version__

if TYPE_CHECKING:
    from fpgapipe.host.package.flow import Flow
    from fpgapipe.host.package.target import Target


def device_readme(flow: Flow, target: Target) -> str:
    """Return the README of a device."""
    cores = "\n\n".join(_core(node) for node in target.nodes)
    return f"""\
# {target.board_name}: {target.board.title}

Made by fpgapipe {__version__}. {flow.tried}

{cores}

{flow.tools(target)}

{_links(target)}
{flow.how_to(target)}{_first_light(flow)}"""


def _core(node: Target) -> str:
    whose = f"The core of node {node.number}" if node.channels else "The core"
    return f"""\
{whose} is `../../../{node.core_file}`, planned for {node.clock_mhz} MHz; its program uses
{node.memory_bytes:,} bytes of memory."""


def _first_light(flow: Flow) -> str:
    if not flow.backend:
        return ""
    way = f"--backend {flow.backend} --cluster lab.yaml"
    return f"""
## First light

With the addresses of all devices in a cluster file `lab.yaml`, from the folder of the build on:

1. `fpgapipe bringup . {way}` tries core, registers, memory, what the core
   sees of the memory, and each link, and says of each step that fails what to look at. Most of its
   time goes into single writes to each memory, 20,000 or five seconds.
2. `fpgapipe run . {way} --data random --steps 3 --check model` trains three
   steps; each must leave the same bits as the bit-exact model.
3. `fpgapipe report .` shows the cycles of those steps beside the predicted ones. If they differ by
   more than a few percent, the memory is slower than the board's file says, or another clock was
   made.
"""


def _links(target: Target) -> str:
    if target.pin_links:
        return _pin_links(target)
    rows = [
        f"| {link.number} | {link.transceiver.name} | "
        f"{link.transceiver.lanes} x {link.lane_rate_gbits_per_s:g} Gb/s | "
        f"{link.transceiver.reference_clock_hz / 1e6:.7g} MHz |"
        for node in target.nodes
        for link in node.links
    ]
    if not rows:
        return f"The device has no links{' to other boards' if target.channels else ''}."
    return "\n".join(
        [
            "| link | port | lanes | reference clock |",
            "|---|---|---|---|",
            *rows,
            "",
            "A reference clock of another frequency gives bit errors or no link at all: check the",
            "board's clock generator before anything else.",
        ]
    )


def _pin_links(target: Target) -> str:
    ways = (("out", "outputs"), ("in", "inputs"))
    rows = [
        f"| {end.number} | {end.port.name} | {way} | {pins.clock} | {pins.valid} | {pins.last} | "
        f"{' '.join(pins.data)} |"
        for end in target.pin_links
        for way, name in ways
        for pins in (getattr(end.port, name),)
    ]
    return "\n".join(
        [
            "| link | port | way | clock | valid | last | data 0 to 7 |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            *(f"* {end.port.name} is at {end.port.connector}" for end in target.pin_links),
            "",
            "Join each pin that goes out with the pin of the same name that goes in at the other",
            f"board, and the grounds. The clock is {target.clk_hz / 2e6:g} MHz; use wires of one",
            "length, 20 cm or so. Nothing of this was on a board yet.",
        ]
    )

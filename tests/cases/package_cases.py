"""Devices to package, with small cores, for every board that can be packaged."""

import dataclasses
from functools import cache

from fpgapipe.boards.library import load_board
from fpgapipe.boards.nodes import nodes_of
from fpgapipe.host.package.flow import FLOWS
from fpgapipe.host.package.package import package_files
from fpgapipe.host.package.target import LinkEnd, OnChipEnd, PinEnd, Target
from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.hw.hls_models.spec.pins import PinsSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.verilog import verilog_of

PHY_BYTES = {"u55c": 64, "u50": 64, "u280": 64, "vcu118": 64, "zcu102": 8, "ulx3s": 4}
"""Width of the links of boards that have packaged transceivers."""

DEVICES = [
    ("u55c", ("qsfp/0", "qsfp/1")),
    ("u55c", ()),
    ("u50", ("qsfp/0",)),
    ("u280", ("qsfp/1", "qsfp/0")),
    ("vcu118", ("qsfp/0", "qsfp/1")),
    ("vcu118", ()),
    ("zcu102", ("sfp/2",)),
    ("zcu102", ()),
    ("kv260", ()),
    ("pynq-z2", ()),
    ("ulx3s", ("gpio/0", "gpio/1")),
    ("ulx3s", ()),
]
"""Boards, and the ports of the links of a device."""


def core_of(num_links, phy_bytes, bus_bytes=16, links=None):
    """A small core, without a vector engine."""
    return CoreSpec(
        2,
        2,
        acc_depth=64,
        scratchpad=ScratchpadSpec(2, 4096),
        bus_bytes=bus_bytes,
        links=links or (LinkEngineSpec(phy_bytes=phy_bytes),) * num_links,
    )


@cache
def verilog(core):
    return verilog_of(Device(core))


@cache
def target_of(name, ports):
    """A device with links at some ports of its board."""
    board = load_board(name)
    groups = {group.name: group for group in board.links}
    known = {each.name: each for each in board.packaging.transceivers}
    pins = {each.name: each for each in board.packaging.pin_ports}
    phy_bytes = PHY_BYTES.get(name, 64)
    pin_links = tuple(
        PinEnd(number, pins[port], PinsSpec(phy_bytes))
        for number, port in enumerate(ports)
        if port in pins
    )
    links = tuple(
        LinkEnd(
            number,
            known[port],
            groups[known[port].link].line_rate_bits_per_s,
            AuroraSpec(phy_bytes, known[port].lanes),
        )
        for number, port in enumerate(ports)
        if port in known
    )
    bus_bytes = 4 if pins else 16
    return Target(
        index=1,
        device=f"{name}-1",
        board=board,
        core=core_of(len(ports), phy_bytes, bus_bytes),
        verilog=verilog(core_of(len(ports), phy_bytes, bus_bytes)),
        clk_hz=board.clock.clk_target_hz,
        memory_bytes=1 << 20,
        links=links,
        die=board.fabric.dies[0].name,
        pin_links=pin_links,
    )


@cache
def files_of(name, ports):
    """All files of such a device, by their names."""
    target = target_of(name, ports)
    return files_of_target(target)


def files_of_target(target):
    """All files of a board, by their names; two of one name have one text."""
    found = list(package_files(FLOWS[target.packaging.flow], target))
    assert len(set(found)) == len(dict(found))
    return dict(found)


@cache
def shared_board():
    """A U280 in the middle of a chain, with four nodes, of which the inner two have equal cores."""
    board = load_board("u280")
    shares = nodes_of(board, 4, enters="qsfp/1", leaves="qsfp/0").nodes
    known = {each.name: each for each in board.packaging.transceivers}
    phy, wires = LinkEngineSpec(phy_bytes=64), OnChipSpec()
    found = []
    for share in shares:
        first, last = share.number == 0, share.number == len(shares) - 1
        core = core_of(2, 64, links=(phy if first else wires, phy if last else wires))
        core = dataclasses.replace(core, memory_ports=share.spec.memory_ports)
        ends = {0: share.number - 1, 1: share.number + 1}
        port = "qsfp/1" if first else "qsfp/0"
        number = 0 if first else 1
        rate = next(group for group in board.links if group.name == "qsfp").line_rate_bits_per_s
        links = (LinkEnd(number, known[port], rate, AuroraSpec(64, 4)),) * (first or last)
        found.append(
            Target(
                index=4 + share.number,
                device=f"u280-1.{share.number}",
                board=board,
                core=core,
                verilog=verilog(core),
                clk_hz=board.clock.clk_target_hz,
                memory_bytes=1 << 20,
                links=links,
                die=share.die,
                number=share.number,
                channels=share.channels,
                on_chip=tuple(
                    OnChipEnd(link, node, 1 - link)
                    for link, node in ends.items()
                    if 0 <= node < len(shares)
                ),
            )
        )
    return dataclasses.replace(found[0], others=tuple(found[1:]))

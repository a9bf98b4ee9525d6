"""Devices to package, with small cores, for every board that can be packaged."""

from functools import cache

from fpgapipe.boards.library import load_board
from fpgapipe.host.package.flow import FLOWS
from fpgapipe.host.package.package import package_files
from fpgapipe.host.package.target import LinkEnd, PinEnd, Target
from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
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


def core_of(num_links, phy_bytes, bus_bytes=16):
    """A small core, without a vector engine."""
    return CoreSpec(
        2,
        2,
        acc_depth=64,
        scratchpad=ScratchpadSpec(2, 4096),
        bus_bytes=bus_bytes,
        links=(LinkEngineSpec(phy_bytes=phy_bytes),) * num_links,
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
    found = list(package_files(FLOWS[target.packaging.flow], target, verilog(target.core)))
    assert len(dict(found)) == len({name for name, _ in found})
    return dict(found)

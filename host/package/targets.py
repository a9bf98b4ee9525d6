"""The devices of a build that are packaged, and which boards can be."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError, counted
from fpgapipe.files import read_text
from fpgapipe.host.build.build_parts import MAX_BYTES
from fpgapipe.host.package.flow import FLOWS, PHY_PROTOCOL, PIN_PROTOCOL
from fpgapipe.host.package.target import (
    INIT_CLOCK_HZ,
    LinkEnd,
    OnChipEnd,
    PinEnd,
    Target,
    core_file,
)
from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP
from fpgapipe.hw.hls_models.spec.pins import BYTES_PER_CYCLE, PinsSpec
from fpgapipe.partition.placed_nodes import PlacedNodes

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster
    from fpgapipe.boards.packaging import PinPort, Transceiver
    from fpgapipe.boards.schema import Board
    from fpgapipe.host.build.build import Build
    from fpgapipe.host.package.flow import Flow
    from fpgapipe.hw.hls_models.spec.device import DeviceSpec, LinkSpec


def check_boards(cluster: Cluster, kind: str) -> None:
    """Check, before a build, whether the boards of a cluster can be packaged.

    Raises
    ------
    UserError
        If one cannot; the message says what is missing.
    """
    flow = FLOWS[kind]
    for name, node in zip(cluster.device_names, cluster.nodes, strict=True):
        flow.check(name, node.board, is_share=node.is_share)
    ends: dict[int, set[str]] = {}  # ports of each board, by the position of its first node
    for link in cluster.links:
        if link.protocol == ON_CHIP:
            continue
        for place, port in (
            (link.source, link.source_port),
            (link.destination, link.destination_port),
        ):
            device, board = cluster.device_names[place], cluster.boards[place]
            if flow.protocol is None:
                raise UserError(
                    f"{device} cannot be packaged: it has a link at {port}, and --package {kind} "
                    "has none; build for one device"
                )
            find = _pin_port if flow.protocol == PIN_PROTOCOL else _transceiver
            find(device, board, port, link.protocol)
            ends.setdefault(place - cluster.nodes[place].number, set()).add(port)
    for place, ports in ends.items():
        _check_quads(cluster.device_names[place], cluster.boards[place], ports)


def _transceiver(device: str, board: Board, port: str, protocol: str) -> Transceiver:
    if protocol != PHY_PROTOCOL:
        raise UserError(
            f"{device} cannot be packaged: its link at {port} is {protocol}, and only "
            f"{PHY_PROTOCOL} has a PHY here; build for one device, or for other ports"
        )
    return _of_port(device, board, port, "transceivers")  # type: ignore[no-any-return]


def _pin_port(device: str, board: Board, port: str, protocol: str) -> PinPort:
    if protocol != PIN_PROTOCOL:
        raise UserError(
            f"{device} cannot be packaged: its link at {port} is {protocol}, and LiteX has links "
            f"over plain pins ({PIN_PROTOCOL}) alone; build for one device, or for other ports"
        )
    return _of_port(device, board, port, "pin_ports")  # type: ignore[no-any-return]


def _of_port(device: str, board: Board, port: str, key: str) -> Any:
    """Entry of a port in the list under a key of the board's packaging."""
    for each in getattr(board.packaging, key):
        if each.name == port:
            return each
    raise UserError(
        f"{device} cannot be packaged: 'packaging.{key}' of board {board.name} does not have port "
        f"{port} (docs/boards.md)"
    )


def _check_quads(device: str, board: Board, ports: set[str]) -> None:
    """Refuse ports that share a quad, since each Aurora core has the PLL of its quad."""
    seen: dict[str, str] = {}
    for each in board.packaging.transceivers if board.packaging else ():
        if each.name in ports and each.quad:
            if each.quad in seen:
                raise UserError(
                    f"{device} cannot be packaged: its links at {seen[each.quad]} and {each.name} "
                    f"share the quad {each.quad} of transceivers, and an Aurora core needs a quad "
                    "for itself; a chain may have such boards at its ends only"
                )
            seen[each.quad] = each.name


def targets(build: Build, cluster: Cluster, flow: Flow) -> list[Target]:
    """Return the boards of a build: the first device of each, with the others that share it.

    Parameters
    ----------
    build : Build
    cluster : Cluster
        The cluster that it was planned for, which `check_boards` has accepted.
    flow : Flow

    Raises
    ------
    UserError
        If a device cannot be packaged.
    """
    placed = PlacedNodes.of(build.plan, build.cluster)
    texts: dict[str, str] = {}  # of the cores' files, which equal cores share
    found: dict[int, list[Target]] = {}  # by the position of the board's first node
    for index, (node, place) in enumerate(zip(build.plan.nodes, placed.places, strict=True)):
        share = cluster.nodes[place]
        board, core = share.board, build.cores[index]
        wires = placed.placement.wires_of(index)
        if len(core.links) != len(wires):
            raise UserError(
                f"{node.device} cannot be packaged: its core has "
                f"{counted(len(core.links), 'link')} and it has "
                f"{counted(len(wires), 'neighbour')} in the chain"
            )
        links: list[LinkEnd] = []
        pin_links: list[PinEnd] = []
        on_chip: list[OnChipEnd] = []
        for number, wire in enumerate(wires):
            link, port = placed.links[wire], placed.port(index, wire)
            if link.protocol == ON_CHIP:
                ((other, there),) = (
                    end for end in placed.placement.wires[wire] if end != (index, number)
                )
                on_chip.append(OnChipEnd(number, cluster.nodes[placed.places[other]].number, there))
            elif flow.protocol == PIN_PROTOCOL:
                pin_links.append(_pin_end(build, board, index, number, link, port))
            else:
                links.append(_link_end(build, board, index, number, link, port))
        resources = build.resources[index]
        dies = [
            each["die"]
            for each in resources["dies"]
            if all(resources["used"][name] <= each["limits"][name] for name in each["limits"])
        ]
        path = build.folder / core_file(core)
        if path.name not in texts:
            texts[path.name] = read_text(path, MAX_BYTES[".v"])
        target = Target(
            index,
            node.device,
            board,
            core,
            texts[path.name],
            node.spec.clk_hz,
            sum(build.memory_use[index].values()),
            tuple(links),
            share.die or (dies[0] if dies else None),
            tuple(pin_links),
            share.number,
            share.channels,
            tuple(on_chip),
        )
        _check_memory(target, share.spec)
        found.setdefault(place - share.number, []).append(target)
    return [dataclasses.replace(first, others=tuple(others)) for first, *others in found.values()]


def _pin_end(
    build: Build, board: Board, index: int, number: int, link: LinkSpec, port: str
) -> PinEnd:
    node = build.plan.nodes[index]
    found = _pin_port(node.device, board, port, link.protocol)
    phy_bytes, clk_hz = build.cores[index].links[number].phy_bytes, node.spec.clk_hz
    if phy_bytes > TRAILER_BYTES or clk_hz * BYTES_PER_CYCLE < link.payload_bytes_per_s * 0.999:
        raise UserError(
            f"{node.device} cannot be packaged: its pins carry "
            f"{clk_hz * BYTES_PER_CYCLE / 1e6:g} MB/s at {clk_hz / 1e6:g} MHz, from links of at "
            f"most {TRAILER_BYTES} bytes, and the plan has {link.payload_bytes_per_s / 1e6:g} MB/s "
            f"and {phy_bytes} bytes; lower the line rate of port {port} in the board's file"
        )
    return PinEnd(number, found, PinsSpec(phy_bytes))


def _link_end(
    build: Build, board: Board, index: int, number: int, link: LinkSpec, port: str
) -> LinkEnd:
    device = build.plan.nodes[index].device
    transceiver = _transceiver(device, board, port, link.protocol)
    clk_hz = build.plan.nodes[index].spec.clk_hz
    phy_bytes = build.cores[index].links[number].phy_bytes
    vitis = board.packaging and board.packaging.vitis
    initial_hz = vitis.init_clock_hz if vitis else INIT_CLOCK_HZ
    if phy_bytes < 8 * transceiver.lanes or phy_bytes * clk_hz < link.payload_bytes_per_s:
        raise UserError(
            f"{device} cannot be packaged: link {number} takes {phy_bytes} bytes a cycle at "
            f"{clk_hz / 1e6:g} MHz, and Aurora delivers {8 * transceiver.lanes} bytes at once and "
            f"{link.payload_bytes_per_s / 1e9:.2f} GB/s"
        )
    bridge = AuroraSpec(phy_bytes, transceiver.lanes, reset_cycles=round(initial_hz))
    return LinkEnd(number, transceiver, link.line_rate_bits_per_s, bridge)


def _check_memory(target: Target, device: DeviceSpec) -> None:
    memories = device.memories
    limit = sum(memory.count * memory.size_bytes for memory in memories)
    if target.memory_bytes > limit:
        names = " and ".join(memory.name for memory in memories)
        raise UserError(
            f"{target.device} cannot be packaged: its program needs {target.memory_bytes:,} bytes "
            f"of memory, and the core reaches {limit:,} bytes of {names}"
        )

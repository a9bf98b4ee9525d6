"""Boards in a table, or one in full, as ``fpgapipe boards`` shows them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from fpgapipe.boards.library import board_names, load_board
from fpgapipe.boards.nodes import MOST_BOUNDARY_WIRES, BoardNodes, nodes_of
from fpgapipe.boards.packaging import Packaging
from fpgapipe.boards.schema import RESOURCES, Board, LinkGroup, Memory
from fpgapipe.errors import UserError, counted
from fpgapipe.host.terminal.console import Table, count, scaled
from fpgapipe.host.terminal.result import Result


@dataclass(frozen=True)
class BoardList(Result):
    """All boards that can be read.

    Attributes
    ----------
    boards : tuple of Board
    """

    RECORDS: ClassVar[str] = "boards"

    boards: tuple[Board, ...]

    def to_dict(self) -> dict[str, Any]:
        """All boards in full."""
        return {"boards": [each.model_dump(mode="json") for each in self.boards]}

    def shown(self) -> Iterator[Table | str]:
        """A row for each board."""
        rows = []
        for board in self.boards:
            memory = " + ".join(
                f"{scaled(group.count * group.size_bytes, 'B', 1024)} {group.kind}"
                for group in board.memory
            )
            links = " + ".join(
                f"{group.count} x {scaled(group.line_rate_bits_per_s, 'b/s')}"
                for group in board.links
            )
            part = board.part
            logic, rest = (part.lut, part.ff), (part.uram, part.dsp)
            resources = (*map(count, logic), f"{part.half_brams / 2:,g}", *map(count, rest))
            where = (memory or "-", links or "-", scaled(board.clock.clk_target_hz, "Hz"))
            rows.append([board.name, part.name, len(board.fabric.dies), *resources, *where])
        yield Table("name|part|>dies|>LUT|>FF|>BRAM36|>URAM|>DSP|memory|links|>clock", rows)
        yield "\nWhole parts; 'fpgapipe boards NAME' shows what shell and reserve leave of one."


@dataclass(frozen=True)
class BoardSheet(Result):
    """A board in full, with the source of its numbers.

    Attributes
    ----------
    board : Board
    nodes : BoardNodes or None
        The nodes that share it, if that was asked for.
    cabled : BoardNodes or str
        Several nodes between two other boards, or at the end of a chain if the board has one link
        port; or why they cannot be cabled, or nothing.
    """

    board: Board
    nodes: BoardNodes | None = None
    cabled: BoardNodes | str = ""

    def to_dict(self) -> dict[str, Any]:
        """The board in full, with its nodes if that was asked for."""
        value = self.board.model_dump(mode="json")
        if self.nodes:
            value |= _nodes_value(self.nodes)
        if isinstance(self.cabled, BoardNodes):
            value["cabled"] = _nodes_value(self.cabled)
        return value

    def shown(self) -> Iterator[Table | str]:
        """Tables of fabric, memory, links, clock and packaging, and the sources."""
        board = self.board

        def numbers(counts: list[int]) -> list[str]:
            shown = dict(zip(RESOURCES, counts, strict=True))
            shown_bram = f"{shown['bram'] / 2:,g}"
            return [shown_bram if key == "bram" else count(shown[key]) for key in RESOURCES]

        def row(what: str, counts: list[int], source: str) -> list[str]:
            return [what, *numbers(counts), source]

        yield f"{board.title} ({board.name}), {board.part.name}, {board.part.dsp_kind}\n"
        rows = [row("part", [board.part.count_of(each) for each in RESOURCES], board.part.source)]
        for die in board.fabric.dies:
            counted = f"{die.name}, {board.fabric.counted.replace('-', ' ')}"
            rows.append(
                row(counted, [die.count_of(each) for each in RESOURCES], board.fabric.source)
            )
        for item in board.shell:
            taken = [-item.count_of(each) for each in RESOURCES]
            rows.append(row(f"{item.die}: {item.name}", taken, item.source))
        shares = [f"{getattr(board.usable_share, each):.0%}" for each in RESOURCES]
        rows.append(["usable share of the rest", *shares, board.usable_share.source])
        for die in board.fabric.dies:
            rows.append(
                row(f"{die.name}, usable", [board.usable(die, each) for each in RESOURCES], "")
            )
        yield Table("fabric|>LUT|>FF|>BRAM36|>URAM|>DSP|source", rows)
        spec = board.device_spec()
        yield f"\nusable on-chip memory: {scaled(spec.on_chip_bytes, 'B', 1024)}"
        if board.memory:
            yield ""
            yield Table(
                "memory|kind|>channels|>size each|>peak each|>sustained each|>latency|source|"
                "source of latency|source of sustained",
                [_memory_row(group) for group in board.memory],
            )
        if board.links:
            yield ""
            yield Table(
                "links|protocol|>ports|>line rate|>payload|>latency|source|source of latency",
                [
                    _group_row(
                        group,
                        group.protocol,
                        scaled(group.line_rate_bits_per_s, "b/s"),
                        scaled(group.spec().payload_bytes_per_s, "B/s"),
                    )
                    for group in board.links
                ],
            )
        yield ""
        yield Table(
            "||source",
            [
                ["clock target", scaled(board.clock.clk_target_hz, "Hz"), board.clock.source],
                [
                    f"host by {board.host.interface}",
                    scaled(board.host.bandwidth_bytes_per_s, "B/s"),
                    board.host.source,
                ],
            ],
        )
        if board.packaging:
            yield ""
            yield Table("packaging||source", _packaging_rows(board, board.packaging))
        if self.nodes:
            yield ""
            yield from _node_parts(self.nodes)
            if self.cabled:
                yield from _cabled_parts(self.cabled)
        yield "\nsources"
        for key, entry in board.sources.items():
            document = f", {entry.document}" if entry.document else ""
            note = f" ({entry.note})" if entry.note else ""
            yield f"  {key}: {entry.title}{document}{note}"


def _nodes_value(shared: BoardNodes) -> dict[str, Any]:
    """The nodes of a board, and the wires between its dies, for JSON."""
    return {
        "nodes": [
            {
                "die": node.die,
                "channels": list(node.channels),
                "ports": list(node.ports),
                **dataclasses.asdict(node.spec),
            }
            for node in shared.nodes
        ],
        "boundary_wires": list(shared.boundary_wires),
    }


def _node_parts(shared: BoardNodes) -> Iterator[Table | str]:
    """Shares of the nodes of a board, and the wires across its dies' boundaries."""
    nodes = shared.nodes
    rows = []
    for node in nodes:
        spec, channels = node.spec, node.channels
        amounts = [count(each) for each in (spec.lut, spec.bram36, spec.uram, spec.dsp)]
        rows.append(
            [
                node.number,
                node.die or "all",
                *amounts,
                f"{channels[0]} to {channels[-1]}" if channels else "all",
                scaled(spec.memory_bytes, "B", 1024),
                spec.memory_ports,
                scaled(spec.memory_bytes_per_s, "B/s"),
                ", ".join(node.ports) or "-",
            ]
        )
    yield Table(
        ">node|die|>LUT|>BRAM36|>URAM|>DSP|channels|>memory|>ports|>rate|link ports",
        rows,
        title=f"{counted(len(nodes), 'node')}, usable resources of each",
    )
    for pair, wires in _boundaries(shared):
        yield (
            f"{pair}: {wires:,} wires of nodes' memory ports and links, of {MOST_BOUNDARY_WIRES:,}"
        )
    least = min(nodes, key=lambda node: node.spec.lut)
    if len(nodes) > 1:
        yield f"{least.die or 'the board'} binds: its nodes have {least.spec.lut:,} LUT each"


def _boundaries(shared: BoardNodes) -> Iterator[tuple[str, int]]:
    """The dies on both sides of each boundary, and the wires across it."""
    names = [die.name for die in shared.board.fabric.dies]
    for pair, wires in zip(pairwise(names), shared.boundary_wires, strict=True):
        yield " to ".join(pair), wires


def _cabled_parts(cabled: BoardNodes | str) -> Iterator[str]:
    """Where the nodes lie, and the wires between dies, if the board is joined to others."""
    if isinstance(cabled, str):
        yield f"Joined to other boards: {cabled}"
        return
    dies = ", ".join(node.die or "all" for node in cabled.nodes)
    ports = "; ".join(
        f"node {each.number} has {' and '.join(each.ports)}" for each in cabled.nodes if each.ports
    )
    wires = "; ".join(f"{pair} {wires:,} wires" for pair, wires in _boundaries(cabled))
    yield f"Joined to other boards, in the order in which data flow: {dies}; {ports}; {wires}"


def _memory_row(memory: Memory) -> list[object]:
    """Description of equal channels of memory."""
    measured = memory.sustained_bytes_per_s
    row = _group_row(
        memory,
        memory.kind,
        scaled(memory.size_bytes, "B", 1024),
        scaled(memory.bandwidth_bytes_per_s, "B/s"),
        scaled(measured, "B/s") if measured else "not measured",
    )
    return [*row, memory.sustained_source or ""]


def _group_row(group: Memory | LinkGroup, kind: str, *quantities: str) -> list[object]:
    """Description of equal channels of memory, or of equal ports of links."""
    latency = f"{group.latency_s * 1e9:g} ns"
    sources = (group.source, group.latency_source)
    return [group.name, kind, group.count, *quantities, latency, *sources]


def _packaging_rows(board: Board, packaging: Packaging) -> list[list[str]]:
    """The board for a vendor's flow: the flow, the tools, the memory, and each port."""
    flow = getattr(packaging, packaging.flow)
    tools = packaging.tools
    name = (
        packaging.vitis.platform
        if packaging.vitis
        else packaging.litex.loader
        if packaging.litex
        else flow.board_part
    )
    rows = [
        [packaging.flow, name, flow.source],
        ["tools", f"{tools.first or 'unknown'} to {tools.last or 'the newest'}", tools.source],
    ]
    for memory in board.reached_memories():
        size = scaled(memory.count * memory.size_bytes, "B", 1024)
        rate = scaled(memory.count * memory.bandwidth_bytes_per_s, "B/s")
        rows.append([memory.name, f"{size}, {rate} by one port of the core", flow.source])
    for each in packaging.transceivers:
        where = each.platform_lanes or f"quad {each.quad}"
        clock = f"{each.reference_clock_hz / 1e6:.7g} MHz"
        rows.append([each.name, f"{each.lanes} lanes, {where}, {clock}", each.source])
    return rows


def list_boards() -> BoardList:
    """All built-in boards that can be read, with warnings of the others."""
    found = []
    for name in board_names():
        try:
            found.append(load_board(name))
        except UserError as error:
            logging.getLogger("fpgapipe.boards").warning("left out: %s", error)
    return BoardList(tuple(found))


def describe_board(name_or_path: str | Path, nodes: int | None = None) -> BoardSheet:
    """A board in full, with the source of its numbers.

    Parameters
    ----------
    name_or_path : str or path
        As for `load_board`.
    nodes : int, optional
        Number of nodes among which to share it.

    Raises
    ------
    UserError
        If there is no such board, or it cannot have so many nodes.
    """
    board = load_board(name_or_path)
    if nodes is None:
        return BoardSheet(board)
    shared = nodes_of(board, nodes)
    ports = [f"{group.name}/{at}" for group in board.links for at in range(group.count)]
    cabled: BoardNodes | str = ""
    if ports and nodes > 1:
        try:
            cabled = nodes_of(board, nodes, **dict(zip(("enters", "leaves"), ports, strict=False)))
        except UserError as error:
            cabled = str(error)
    return BoardSheet(board, shared, cabled)

"""``fpgapipe boards``: lists the boards, or shows one in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.host.cli.options.completion import boards_that_begin
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.boards.packaging import Packaging
    from fpgapipe.boards.schema import Board


@command("boards", example="fpgapipe boards u280")
@click.argument("board", metavar="[NAME|FILE]", required=False, shell_complete=boards_that_begin)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def boards(board: str | None, as_json: bool) -> None:
    """List the boards, or show one in full with the source of its numbers."""
    from fpgapipe.boards.library import load_board
    from fpgapipe.host.terminal.console import print_json

    if board is None:
        found = _all_boards()
        if as_json:
            print_json({"boards": [each.model_dump(mode="json") for each in found]})
        else:
            _print_list(found)
        return
    one = load_board(board)
    if as_json:
        print_json(one.model_dump(mode="json"))
    else:
        _print_board(one)


def _all_boards() -> list[Board]:
    """Return all boards that can be read, and warn of the others."""
    import logging

    from fpgapipe.boards.library import board_names, load_board
    from fpgapipe.errors import UserError

    found = []
    for name in board_names():
        try:
            found.append(load_board(name))
        except UserError as error:
            logging.getLogger("fpgapipe.boards").warning("left out: %s", error)
    return found


def _print_list(found: list[Board]) -> None:
    from fpgapipe.host.terminal.console import Column, count, print_table, scaled

    rows = []
    for board in found:
        memory = " + ".join(
            f"{scaled(group.count * group.size_bytes, 'B', 1024)} {group.kind}"
            for group in board.memory
        )
        links = " + ".join(
            f"{group.count} x {scaled(group.line_rate_bits_per_s, 'b/s')}" for group in board.links
        )
        rows.append(
            [
                board.name,
                board.part.name,
                len(board.fabric.dies),
                count(board.part.lut),
                count(board.part.ff),
                f"{board.part.half_brams / 2:,g}",
                count(board.part.uram),
                count(board.part.dsp),
                memory or "-",
                links or "-",
                scaled(board.clock.clk_target_hz, "Hz"),
            ]
        )
    print_table(
        [
            Column("name"),
            Column("part"),
            *(Column(title, True) for title in ("dies", "LUT", "FF", "BRAM36", "URAM", "DSP")),
            Column("memory"),
            Column("links"),
            Column("clock", True),
        ],
        rows,
    )
    print("\nWhole parts; 'fpgapipe boards NAME' shows what shell and reserve leave of one.")


def _print_board(board: Board) -> None:
    from fpgapipe.boards.schema import RESOURCES
    from fpgapipe.host.terminal.console import Column, count, print_table, scaled

    def numbers(counts: list[int]) -> list[str]:
        shown = dict(zip(RESOURCES, counts, strict=True))
        shown_bram = f"{shown['bram'] / 2:,g}"
        return [shown_bram if key == "bram" else count(shown[key]) for key in RESOURCES]

    def row(what: str, counts: list[int], source: str) -> list[str]:
        return [what, *numbers(counts), source]

    print(f"{board.title} ({board.name}), {board.part.name}, {board.part.dsp_kind}\n")
    rows = [row("part", [board.part.count_of(each) for each in RESOURCES], board.part.source)]
    for die in board.fabric.dies:
        counted = f"{die.name}, {board.fabric.counted.replace('-', ' ')}"
        rows.append(row(counted, [die.count_of(each) for each in RESOURCES], board.fabric.source))
    for item in board.shell:
        taken = [-item.count_of(each) for each in RESOURCES]
        rows.append(row(f"{item.die}: {item.name}", taken, item.source))
    shares = [f"{getattr(board.usable_share, each):.0%}" for each in RESOURCES]
    rows.append(["usable share of the rest", *shares, board.usable_share.source])
    for die in board.fabric.dies:
        rows.append(row(f"{die.name}, usable", [board.usable(die, each) for each in RESOURCES], ""))
    print_table(
        [
            Column("fabric"),
            *(Column(title, True) for title in ("LUT", "FF", "BRAM36", "URAM", "DSP")),
            Column("source"),
        ],
        rows,
    )
    spec = board.device_spec()
    print(f"\nusable on-chip memory: {scaled(spec.on_chip_bytes, 'B', 1024)}")
    if board.memory:
        print()
        print_table(
            [
                Column("memory"),
                Column("kind"),
                Column("channels", True),
                *(Column(title, True) for title in ("size each", "bandwidth each", "latency")),
                Column("source"),
                Column("source of latency"),
            ],
            [
                [
                    group.name,
                    group.kind,
                    group.count,
                    scaled(group.size_bytes, "B", 1024),
                    scaled(group.bandwidth_bytes_per_s, "B/s"),
                    f"{group.latency_s * 1e9:g} ns",
                    group.source,
                    group.latency_source,
                ]
                for group in board.memory
            ],
        )
    if board.links:
        print()
        print_table(
            [
                Column("links"),
                Column("protocol"),
                Column("ports", True),
                *(Column(title, True) for title in ("line rate", "payload", "latency")),
                Column("source"),
                Column("source of latency"),
            ],
            [
                [
                    group.name,
                    group.protocol,
                    group.count,
                    scaled(group.line_rate_bits_per_s, "b/s"),
                    scaled(group.spec().payload_bytes_per_s, "B/s"),
                    f"{group.latency_s * 1e9:g} ns",
                    group.source,
                    group.latency_source,
                ]
                for group in board.links
            ],
        )
    print()
    print_table(
        [Column(""), Column(""), Column("source")],
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
        print()
        print_table(
            [Column("packaging"), Column(""), Column("source")],
            _packaging_rows(board, board.packaging),
        )
    print("\nsources")
    for key, entry in board.sources.items():
        document = f", {entry.document}" if entry.document else ""
        note = f" ({entry.note})" if entry.note else ""
        print(f"  {key}: {entry.title}{document}{note}")


def _packaging_rows(board: Board, packaging: Packaging) -> list[list[str]]:
    """What a vendor's flow knows of the board: the flow, the tools, the memory, and each port."""
    from fpgapipe.host.terminal.console import scaled

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

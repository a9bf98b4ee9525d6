"""Wires across the boundaries of dies, for every number of nodes that boards can have.

For each board that nodes share, alone and in a chain of three, and each number of nodes: the wires
across the boundaries of each board, or why so many nodes are refused. They are counted anew from
the places of nodes and from the pins of a generated core: memory ports, on-chip links, and links to
other boards. Prints one JSON object; exits with 1 if more than `MOST_BOUNDARY_WIRES` are accepted.
"""

import json
import re
import sys
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

from amaranth.hdl import Value

from fpgapipe.boards.address import MOST_NODES
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import board_names, load_board
from fpgapipe.boards.nodes import MOST_BOUNDARY_WIRES, PORT_WIRES, BoardNode
from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.hw.rtl.device import Device

CHAINS = (1, 3)
"""Numbers of boards that are joined."""


def pins() -> dict[str, int]:
    """Pins of a memory port, and of an on-chip link, of a core."""
    core = Device(CoreSpec(4, 4, links=(OnChipSpec(),)))
    found = {"m_axi": 0, "axis_link": 0}
    for path, _, value in core.signature.flatten(core):
        for name in found:
            if re.match(rf"(m_|s_)?{name}\d*_", str(path[0])):
                found[name] += len(Value.cast(value))
    return found


def wires_of(nodes: Sequence[BoardNode], of_pins: dict[str, int]) -> list[int]:
    """Wires across each boundary of a board that has these nodes."""
    board = nodes[0].board
    dies = [die.name for die in board.fabric.dies]
    places = [dies.index(each.die) for each in nodes if each.die]
    memory = dies.index(board.packaging.vitis.memory_die)
    home = {group.name: dies.index(group.die) for group in board.links if group.die}
    spans = []
    for place, node in zip(places, nodes, strict=True):
        spans.append((place, memory, node.spec.memory_ports * of_pins["m_axi"]))
        spans += [(place, home[port.split("/")[0]], PORT_WIRES) for port in node.ports]
    spans += [(*pair, of_pins["axis_link"]) for pair in pairwise(places)]
    return [
        sum(wires for one, other, wires in spans if min(one, other) <= at < max(one, other))
        for at in range(len(dies) - 1)
    ]


def cases(of_pins: dict[str, int]) -> list[dict[str, Any]]:
    """Each board, length of the chain and number of nodes, with its wires or its refusal."""
    found: list[dict[str, Any]] = []
    for name, boards, count in product(board_names(), CHAINS, range(2, MOST_NODES + 1)):
        board = load_board(name)
        if not (board.packaging and board.packaging.vitis) or len(board.fabric.dies) < 2:
            continue  # one node, which spans the dies
        case: dict[str, Any] = {"board": name, "boards": boards, "nodes": count}
        try:
            nodes = chain_of(board, boards, count).nodes
        except UserError as error:
            case["refused"] = str(error)
        else:
            case["memory_ports"] = [each.spec.memory_ports for each in nodes]
            case["wires"] = [
                wires_of(nodes[first : first + count], of_pins)
                for first in range(0, len(nodes), count)
            ]
        found.append(case)
    return found


def main() -> int:
    """Print the figures; returns the exit code."""
    of_pins = pins()
    found = cases(of_pins)
    accepted = [wires for case in found for each in case.get("wires", ()) for wires in each]
    figures = {
        "most_wires": MOST_BOUNDARY_WIRES,
        "widest": max(accepted),
        "accepted": sum("wires" in case for case in found),
        "refused": sum("refused" in case for case in found),
        "refused_for_wires": sum("would cross" in case.get("refused", "") for case in found),
        "pins": of_pins,
    }
    within = max(accepted) <= MOST_BOUNDARY_WIRES
    print(json.dumps(figures | {"within": within, "cases": found}, indent=1))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())

"""How large a core each device and each die of a board holds, by the resource model.

Prints one JSON object. It has the core with the most cells that the planner tries on each device,
without links. For each shared board, one or two nodes a die, size of the array and die, it has the
first of the planner's savings with which the node fits, what that takes and what there is; or, with
all savings, what is too much. Nodes of a board are joined by on-chip links and have two memory
ports each, or as many as wires across the dies allow. ``-o docs/figures/dies.json`` writes to the
file of docs/cost-model.md, too.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figure import write_figure

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.hw.hls_models.resources.core_resources import core_resources
from fpgapipe.hw.hls_models.spec.device import DeviceSpec
from fpgapipe.partition.cost.cores import (
    RESOURCES,
    candidate_cores,
    core_fits,
    core_of,
    on_part,
    usable_savings,
)

DEVICES = ("u280", "u250", "vcu118", "zcu102", "kv260", "arty-a7-100t", "pynq-z2", "ulx3s")
BOARDS = ("u280", "u55c")
SIZES = ((32, 32), (32, 64), (32, 128))
A_DIE = (1, 2)

NOTE = (
    "By the resource model: the largest core of each device, and for each die and node of it the "
    "first core that fits, or the last one that does not, and what it lacks."
)


def largest(name: str) -> dict[str, Any]:
    """The core of a device with the most cells."""
    device = chain_of(load_board(name), 1).spec.devices[0]
    core = candidate_cores(device)[0].core
    vector = core.vector
    assert vector is not None
    lanes = f"{vector.lanes} lane{'s' * (vector.lanes > 1)}"
    savings = ", small" * (core.scratchpad.parts > 1) + ", no random numbers" * (not vector.random)
    takes = core_resources(on_part(device, core))
    return {
        "core": f"{core.rows} x {core.cols}, {lanes}{savings}",
        "lut_inputs": 4 if device.dsp_kind == "MULT18X18D" else 6,
        "takes": {name: getattr(takes, name) for name in RESOURCES},
        "may_take": {name: getattr(device, name) for name in RESOURCES},
    }


def held(device: DeviceSpec, rows: int, cols: int) -> dict[str, Any]:
    """The first core with an array of this size that fits a node, or what the last one lacks."""
    links = sum(port.count for port in device.ports)
    none, large, _ = usable_savings(device, None, 1, links, random=True)
    for savings in (none, *large):
        core = core_of(device, rows, cols, num_links=links, savings=savings).core
        lacks = core_fits(device, core)
        if not lacks:
            break
    vector = core.vector
    assert vector is not None
    worst = max(lacks, key=lambda each: each.needed / max(each.available, 1), default=None)
    most = f"{worst.needed - worst.available:,} {worst.resource.upper()}s" if worst else None
    return {
        "fits": not lacks,
        "lacks": [str(each) for each in lacks],
        "lacks_most": most,
        "core": {
            "form": str(core.form),
            "lanes": vector.lanes,
            "function_lanes": vector.function_lanes,
            "counters": core.counters,
            "links": links,
            "memory_ports": core.memory_ports,
        },
        "takes": asdict(core_resources(on_part(device, core))),
        "may_take": {name: getattr(device, name) for name in RESOURCES},
    }


def measure(name: str) -> dict[str, Any]:
    """All sizes on a board, die by die."""
    board = load_board(name)
    dies = len(board.fabric.dies)
    found: dict[str, Any] = {}
    for number in A_DIE:
        nodes = chain_of(board, 1, number * dies).nodes
        found[f"{number} a die"] = {
            f"{rows}x{cols}": {
                f"{node.die} {at}": held(node.spec, rows, cols) for at, node in enumerate(nodes)
            }
            for rows, cols in SIZES
        }
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boards", nargs="+", default=BOARDS)
    parser.add_argument("-o", "--output", type=Path, help="file of figures")
    given = parser.parse_args()
    found = {
        "largest": {name: largest(name) for name in DEVICES},
        "dies": {name: measure(name) for name in given.boards},
    }
    print(json.dumps({"bench": "dies", **found}, indent=2))
    if given.output:
        write_figure(given.output, "bench/bench_dies.py", NOTE, found)


if __name__ == "__main__":
    main()

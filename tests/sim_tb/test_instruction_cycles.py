"""The cycle model of single instructions against simulated hardware."""

from dataclasses import replace

import numpy as np
import pytest

from fpgapipe.host.backends.simulated_devices import SimulatedDevices
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.frontends.torch.torch_program import from_torch
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster

torch = pytest.importorskip("torch", reason="needs the torch extra")

CORE = CoreSpec(
    8, 8, acc_depth=256, scratchpad=ScratchpadSpec(8, 1 << 14), vector=VectorSpec(4, 2),
    links=(LinkEngineSpec(), LinkEngineSpec()),
)  # fmt: skip
NARROW = replace(CORE, scratchpad=ScratchpadSpec(8, 1 << 14, port_bytes=16), links=())

FIRST = 4
"""Loads in front of the instruction, so that the program has been read when it begins."""

APART = {"wide": 6, "narrow": 26}
"""Largest difference of an instruction's cycles between the model and the hardware."""

pytestmark = pytest.mark.sim


def linear():
    """Products of few rows, with words of the reduction that are full, or have two elements."""
    return [torch.nn.Linear(2, 8), torch.nn.Linear(8, 32), torch.nn.Linear(32, 5)], (4, 2)


def convolutions():
    """Transfers of many rows of a few bytes."""
    return [
        torch.nn.ConvTranspose2d(3, 2, 3, stride=2),
        torch.nn.Conv2d(2, 6, 2, stride=2),
    ], (1, 3, 9, 9)


def alone(instruction, load, end):
    """A program in which an instruction runs behind some loads, with nothing beside it."""
    loads = [replace(load, wait=(0,) * (number > 0), signal=(0,)) for number in range(FIRST)]
    return [*loads, replace(instruction, wait=(0,), signal=()), end]


@pytest.mark.parametrize("draw", [linear, convolutions])
@pytest.mark.parametrize("core", [CORE, NARROW], ids=APART)
def test_single_instructions(draw, core):
    layers, shape = draw()
    module = torch.nn.Sequential(*layers, torch.nn.Flatten())
    graph = from_torch((module, (torch.randn(shape),)), name="network")
    *instructions, end = build_step(graph, core, options=StepOptions(activations=FP32)).instructions
    different = {str(replace(each, wait=(), signal=())): each for each in instructions}
    load = next(each for each in instructions if each.opcode == Opcode.LOAD)
    entry, size = 1 << 20, 1 << 21
    found = []
    devices = SimulatedDevices(CoreCluster([core], [size], [MemorySpec()]))
    try:
        memory = devices.drivers[0].reserve(size)
        for each in (load, *different.values()):
            program = alone(each, load, end)
            code = np.frombuffer(encode(program), np.uint8)
            memory[entry : entry + code.size] = code
            cycles = devices.run([entry], [[0] * NUM_SCALARS])
            found.append((cycles - predict(program, core).ends[FIRST], each))
    finally:
        devices.close()
    # A program takes some cycles from its last instruction's end to its own: those of a load.
    usual, _ = found.pop(0)
    most = APART["wide" if core is CORE else "narrow"]
    far = [(apart - usual, str(each)) for apart, each in found if abs(apart - usual) > most]
    assert not far
    assert {each.opcode for _, each in found} == {
        Opcode.LOAD, Opcode.STORE, Opcode.GEMM, Opcode.VECTOR,
    }  # fmt: skip

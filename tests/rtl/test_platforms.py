"""Gateware in designs of others: plain conversion, and Amaranth's own platforms."""

import dataclasses

import pytest
from amaranth.back import verilog
from amaranth.build import Attrs, Clock, Pins, Resource
from amaranth.hdl import ClockSignal, Elaboratable, Fragment, Module, ResetSignal, Signal
from amaranth.vendor import XilinxPlatform

from fpgapipe.hw.hls_models.model.datapath import DatapathSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec
from fpgapipe.hw.rtl.arith.fp32 import Fp32Adder, Fp32Multiplier
from fpgapipe.hw.rtl.arith.function import FunctionUnit
from fpgapipe.hw.rtl.arith.mx import BlockQuantiser
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.dma.scratchpad import Scratchpad, ScratchpadPorts
from fpgapipe.hw.rtl.gemm.datapath import GemmDatapath
from fpgapipe.hw.rtl.gemm.operand import OperandReader
from fpgapipe.hw.rtl.gemm.result import ResultWriter
from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
from fpgapipe.hw.rtl.vector.vector_engine import VectorEngine
from fpgapipe.sim_tb.drivers.simulate import simulate_verilog

SMALL = CoreSpec(4, 4, acc_depth=64, scratchpad=ScratchpadSpec(2, 1 << 12), bus_bytes=16)
LARGER = CoreSpec(
    4, 4, acc_depth=64, scratchpad=ScratchpadSpec(2, 1 << 12), bus_bytes=16,
    vector=VectorSpec(2, 1), links=(LinkEngineSpec(),),
)  # fmt: skip
PORTS = ScratchpadPorts(ScratchpadSpec(2, 256), 2, 1)
BLOCKS = {
    "adder": Fp32Adder,
    "multiplier": Fp32Multiplier,
    "function unit": FunctionUnit,
    "quantiser": BlockQuantiser,
    "scratchpad": lambda: Scratchpad(PORTS),
    "array": lambda: SystolicArray(SystolicSpec(2, 2)),
    "datapath": lambda: GemmDatapath(DatapathSpec(2, 2, 16)),
    "operand reader": lambda: OperandReader(SMALL),
    "result writer": lambda: ResultWriter(SMALL),
    "vector engine": lambda: VectorEngine(LARGER),
}


class Board(XilinxPlatform):
    """A board as Amaranth describes one."""

    device, package, speed = "xcku5p", "ffvb676", "2-e"
    default_clk = "clk"
    resources = [Resource("clk", 0, Pins("A1", dir="i"), Clock(100e6), Attrs())]  # noqa: RUF012
    connectors = []  # noqa: RUF012


class Surrounded(Elaboratable):
    """A design of somebody else's, with two devices and a register in its domain."""

    def __init__(self, spec):
        self.spec = spec

    def elaborate(self, platform):
        m = Module()
        count = Signal(8)
        for number in range(2):
            device = m.submodules[f"device{number}"] = Device(self.spec)
            m.d.comb += [
                device.clk.eq(ClockSignal()),
                device.rst.eq(ResetSignal(allow_reset_less=True)),
            ]
            with m.If(device.irq):
                m.d.sync += count.eq(count + 1)
        return m


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_elaborated_for_a_platform_of_amaranth(name):
    Fragment.get(BLOCKS[name](), Board())


def test_block_becomes_a_file_of_a_platform():
    """All of it, so that nothing has to be added to the project."""
    text = Board().prepare(Scratchpad(PORTS), "top").files["top.v"]
    assert "module top" in text
    assert "memory_" not in text


def test_block_is_converted_by_amaranth():
    assert "module top" in verilog.convert(SystolicArray(SystolicSpec(2, 2)))


def test_devices_have_their_own_domains():
    """A design around them keeps its own, in which the clock comes from the board."""
    design = Fragment.get(Surrounded(SMALL), Board())
    design.prepare(ports=(), hierarchy=("top",))


@pytest.mark.slow  # half a minute to elaborate and convert it twice
def test_device_is_converted():
    assert "output m_axi_arvalid;" in verilog.convert(Device(SMALL))
    text = Board().prepare(Surrounded(LARGER), "top").files["top.v"]
    assert "module top" in text
    assert "\\top.device1" in text


@pytest.mark.sim
@pytest.mark.slow  # a build of its own
def test_converted_block_is_right(tmp_path):
    parameters = dataclasses.asdict(PORTS) | {"aligned_reads": [], "aligned_writes": []}
    text = verilog.convert(Scratchpad(PORTS))
    simulate_verilog(text, "tb_scratchpad", tmp_path, parameters=parameters, seed=1)

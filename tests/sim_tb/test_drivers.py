"""Drivers of testbenches, and the example of their use in the documentation."""

import re
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from link_designs import link_ports
from native_designs import REGISTER_PORTS, CopyEngine, memory_ports

from fpgapipe.sim_tb.drivers.simulate import simulate
from fpgapipe.sim_tb.drivers.timed_memory import MemoryTiming

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"
BUS_BYTES = 16


class DriverDesign(wiring.Component):
    """A copying engine, a stream with a register, and two links whose ends are crossed.

    Bit 0 of `fault` lets the stream change a beat that waits, bit 1 makes link 0 not ready.
    """

    def __init__(self):
        self._copy = CopyEngine(BUS_BYTES)
        self._flat = REGISTER_PORTS | memory_ports(BUS_BYTES) | {"irq": Out(1)}
        streams = {name.replace("link9", "x"): member for name, member in link_ports(9, 4).items()}
        links = link_ports(0, 16) | link_ports(1, 16)
        super().__init__(self._flat | streams | links | {"fault": In(2)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.copy = self._copy
        for name, member in self._flat.items():
            inner, outer = getattr(self._copy, name), getattr(self, name)
            m.d.comb += inner.eq(outer) if member.flow == In else outer.eq(inner)
        ticks = Signal(4)
        m.d.sync += ticks.eq(ticks + self.fault[0])
        self._join(m, "x", "x", ticks)
        for one, other in ((0, 1), (1, 0)):
            self._join(m, f"link{one}", f"link{other}", 0)
        with m.If(self.fault[1]):
            m.d.comb += self.s_axis_link0_tready.eq(0)
        return m

    def _join(self, m, source, target, ticks):
        i = {part: getattr(self, f"s_axis_{source}_t{part}") for part in PARTS}
        o = {part: getattr(self, f"m_axis_{target}_t{part}") for part in PARTS}
        kept = Signal.like(i["data"], name=f"{source}_data")
        m.d.comb += [i["ready"].eq(o["ready"] | ~o["valid"]), o["data"].eq(kept ^ ticks)]
        with m.If(i["ready"]):
            m.d.sync += [
                kept.eq(i["data"]),
                *(o[part].eq(i[part]) for part in ("keep", "last", "valid")),
            ]


PARTS = ("data", "keep", "last", "valid", "ready")


@pytest.mark.sim
def test_drivers(tmp_path):
    simulate(DriverDesign(), "tb_drivers", tmp_path, seed=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes_per_cycle": 0},
        {"latency_cycles": 0},
        {"write_latency_cycles": 0},
        {"outstanding": 0},
        {"pause": 1.0},
        {"banks": (0, 64, 1)},
    ],
    ids=str,
)
def test_timing_is_checked(wrong):
    with pytest.raises(ValueError, match="timing is out of range"):
        MemoryTiming(**wrong)


@pytest.mark.sim
@pytest.mark.slow  # a core with links takes long to build
def test_example_of_documentation(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    (testbench,) = [block for block in blocks if block.startswith("# tb_echo.py\n")]
    (call,) = [block for block in blocks if "import SPEC" in block]
    (tmp_path / "tb_echo.py").write_text(testbench)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(compile(call, DOCUMENT.name, "exec"), {})
    assert (tmp_path / "out" / "echo" / "tb_echo.log").exists()

"""Files that ``fpgapipe new`` writes: commented files to begin with, which work unchanged."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.files import write_new

if TYPE_CHECKING:
    from collections.abc import Callable

_BOARD = """\
# A board of your own: NAME. All numbers here are made up, for a middling card with one bank of
# DDR4; replace them by those of your data sheet. 'fpgapipe boards ./NAME.yaml' checks the file, and
# says of each fault the line, the key, and what is allowed. docs/boards.md has every key; the
# built-in files, of which 'fpgapipe boards' lists the names, are examples.
format: 1
name: NAME # what the board is called in results
title: Our NAME card # maker and model

# The device, by its data sheet.
part:
  name: xcku5p-ffvb676-2-e # as the vendor's tools call it
  dsp_kind: DSP48E2 # DSP48E1, DSP48E2, DSP58 or MULT18X18D
  lut: 216_960
  ff: 433_920
  bram36: 480 # blocks of 36 kbit; bram18 counts those of 18
  uram: 64
  dsp: 1824
  source: sheet # a key of 'sources' below, or 'estimate: why'

# Its dies (SLRs), in the order in which they are connected. Most devices have one.
fabric:
  counted: raw # or after-shell, where a vendor's platform is taken out already
  source: sheet
  dies:
    - {name: fabric, lut: 216_960, ff: 433_920, bram36: 480, uram: 64, dsp: 1824}

# How much of it a design may fill and still be routed.
usable_share:
  lut: 0.7
  ff: 0.5
  bram: 0.8
  uram: 0.8
  dsp: 0.8
  source: 'estimate: what designs of this kind usually reach'

# What every design on this board carries. It is taken off the fabric.
shell:
  - name: memory controller
    die: fabric
    lut: 15_000
    ff: 18_000
    bram36: 26
    uram: 0
    dsp: 3
    source: 'estimate: a DDR4 controller of 64 bits'

# What designs should aim for, not what the device could do at best.
clock:
  clk_target_hz: 250 MHz
  source: 'estimate: to be replaced when a design has been placed'

# Groups of equal channels; the numbers are those of one channel.
memory:
  - name: ddr4
    kind: ddr4
    count: 1
    size_bytes: 4 GiB
    bandwidth_bytes_per_s: 19.2 GB/s
    source: sheet
    latency_s: 0.15 us
    latency_source: 'estimate: a row that is closed, and the controller'

# Groups of equal ports to other boards; a board without any works alone.
links:
  - name: sfp28
    count: 2
    protocol: aurora-64b66b
    line_rate_bits_per_s: 25.78125 Gb/s
    source: sheet
    latency_s: 0.5 us
    latency_source: 'estimate: both transceivers and 2 m of cable'

host:
  interface: pcie-gen3-x8
  bandwidth_bytes_per_s: 7.88 GB/s
  source: sheet

# Where the numbers come from.
sources:
  sheet:
    title: Data sheet of our card
    note: replace this by the document and the page
"""

_NETWORK = '''\
"""A network of your own: NAME.

'fpgapipe inspect NAME:network --batch 8' shows its layers, and
'fpgapipe plan NAME:network --board u280 --devices 2 --batch 32' how fast two boards could train it.
'fpgapipe build --network NAME:network --board u280 --devices 2 --array 8x8 -o out/NAME' builds it.

A PyTorch module does as well: a function that returns a pair of the module and its example
inputs, such as `return torch.nn.Sequential(...), torch.zeros(batch, 1, 8, 8)`. docs/networks.md
says what a function may return, docs/limits.md what the core runs.
"""

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network


def network(batch: int = 1) -> Graph:
    """Two convolutions and a classifier for ten classes of 8 x 8 grey images."""
    net = Network("NAME", batch)
    x = net.image(1, 8, 8)  # channels, rows, columns
    # 16 channels, a window of 3 x 3; the padding keeps the size.
    x = net.relu(net.conv(x, 16, 3, padding=1))
    x = net.max_pool(x, 2)  # 4 x 4 are left
    x = net.relu(net.conv(x, 32, 3, padding=1))
    x = net.max_pool(x, 2)  # 2 x 2 are left
    # The last layer gives a number for each class; the loss is cross-entropy.
    net.linear(net.flatten(x), 10)
    return net.build()
'''

_TESTBENCH = '''\
"""Gateware of your own, and its testbench: NAME.

'python NAME.py' compiles it with Verilator, a minute the first time, and runs the tests below.
docs/simulation.md has the drivers there are: streams, registers, memory, links.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import cocotb
from amaranth.hdl import Module, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.sim_tb.drivers.simulate import simulate
from fpgapipe.sim_tb.drivers.stream import StreamDriver, StreamSink, parameters, start


@dataclass(frozen=True)
class Spec:
    """Specification that gateware and testbench share: the width of a word, and its result."""

    bits: int

    def compute(self, word: int) -> int:
        """The result for a word; this is the definition, and the gateware has to give the same."""
        return 2 * word


class Doubler(wiring.Component):
    """Doubles the words of a stream: latency 1 cycle, throughput 1 word a cycle."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        super().__init__(
            {
                "i": In(stream.Signature(signed(spec.bits))),
                "o": Out(stream.Signature(signed(spec.bits + 1))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A word is taken if the register is free, or becomes free in this cycle.
        m.d.comb += self.i.ready.eq(self.o.ready | ~self.o.valid)
        with m.If(self.i.ready):
            m.d.sync += [
                self.o.payload.eq(self.i.payload << 1),
                self.o.valid.eq(self.i.valid),
            ]
        return m


@cocotb.test(timeout_time=100, timeout_unit="us")
async def gives_what_the_spec_says(dut):
    """Random words and the outermost ones, with random pauses on both sides."""
    spec = Spec(**parameters())
    rng = random.Random(cocotb.RANDOM_SEED)
    top = 1 << (spec.bits - 1)
    words = [-top, -1, 0, top - 1, *(rng.randrange(-top, top) for _ in range(100))]
    await start(dut)
    cocotb.start_soon(StreamDriver(dut, "i", rng).send(words))
    found = await StreamSink(dut, "o", rng).receive(len(words))
    assert found == [spec.compute(word) for word in words]


if __name__ == "__main__":
    simulate(Doubler(Spec(bits=8)), tb="NAME", work=Path("out/NAME"))
    print("NAME: all tests passed")
'''


@dataclass(frozen=True)
class Kind:
    """A kind of file to begin with.

    Attributes
    ----------
    text : str
        Contents of the file, with NAME as a placeholder for its name.
    suffix : str
        Suffix of the file's name.
    check : str
        Command line that checks the file, with the same placeholder.
    fault : callable
        Function that says what is wrong with a name; the result is empty for a good name.
    """

    text: str
    suffix: str
    check: str
    fault: Callable[[str], str]


def _board_fault(name: str) -> str:
    return (
        ""
        if re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name)
        else ("must be small letters, digits and hyphens, a letter first, at most 40")
    )


def _module_fault(name: str) -> str:
    if not (re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) and not keyword.iskeyword(name)):
        return "must be a Python module's: small letters, digits and underscores, at most 40"
    if name in sys.stdlib_module_names or importlib.util.find_spec(name):
        return "would hide a Python module of that name"
    return ""


KINDS = {
    "board": Kind(_BOARD, ".yaml", "fpgapipe boards ./NAME.yaml", _board_fault),
    "network": Kind(_NETWORK, ".py", "fpgapipe inspect NAME:network --batch 8", _module_fault),
    "testbench": Kind(_TESTBENCH, ".py", "python NAME.py", _module_fault),
}


def write_starting_file(kind: str, name: str, folder: Path) -> tuple[Path, str]:
    """Write a file to begin with; return its path and the command line that checks it.

    Raises
    ------
    UserError
        If the name is not allowed, or the file exists already or cannot be written.
    """
    found = KINDS[kind]
    path = folder / f"{name}{found.suffix}"
    if path.is_file():
        raise UserError(f"{path} is there already, and is not overwritten; take another name")
    if fault := found.fault(name):
        raise UserError(f"the name of a {kind} {fault}, not {name!r}")
    write_new(path, found.text.replace("NAME", name))
    return path, found.check.replace("NAME", name)

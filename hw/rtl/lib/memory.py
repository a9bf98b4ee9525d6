"""A block RAM with one read port and one write port, without initial contents."""

from dataclasses import dataclass

from amaranth.hdl import ClockSignal, Instance, Module, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.rtl.lib.modules import makes_modules


@dataclass(frozen=True)
class BlockMemorySpec:
    """The size of a memory.

    Parameters
    ----------
    rows : int
        Number of rows, at least 2.
    bits : int
        Width of a row, bits.
    granule_bits : int
        Bits of a row that one bit of the write mask stands for; a divisor of `bits`.
    """

    rows: int
    bits: int
    granule_bits: int

    def __post_init__(self) -> None:
        if self.rows < 2:
            raise ValueError(f"memory rows must be at least 2, not {self.rows!r}")
        if self.granule_bits < 1 or self.bits % self.granule_bits:
            raise ValueError(
                f"memory granule_bits must divide its {self.bits} bits, not {self.granule_bits!r}"
            )

    @property
    def row_bits(self) -> int:
        """Bits of a row's number."""
        return (self.rows - 1).bit_length()

    @property
    def granules(self) -> int:
        """Bits of the write mask."""
        return self.bits // self.granule_bits


class BlockMemory(wiring.Component):
    """Gateware of :class:`BlockMemorySpec`.

    It is a module of its own, which is emitted once however often it is used. Amaranth's memories
    have initial contents, which are emitted row by row; this takes seconds and hundreds of
    kilobytes. The content of this memory before the first write is undefined.

    Members
    -------
    read : In(1)
    read_row : In(row_bits)
        The row to read, if `read`.
    read_data : Out(bits)
        The row that was read last, from the cycle after `read` on, as it was before a write in the
        cycle of `read`.
    write : In(granules)
        Granules of `write_data` that are written.
    write_row : In(row_bits)
        The row to write.
    write_data : In(bits)
    """

    def __init__(self, spec: BlockMemorySpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "read": In(1),
                "read_row": In(spec.row_bits),
                "read_data": Out(spec.bits),
                "write": In(spec.granules),
                "write_row": In(spec.row_bits),
                "write_data": In(spec.bits),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        spec = self.spec
        if makes_modules(platform):
            name = f"memory_{spec.rows}x{spec.bits}_{spec.granule_bits}"
            platform.add_file(f"{name}.il", _rtlil(name, spec))
            inputs = ("read", "read_row", "write", "write_row", "write_data")
            ports = {f"i_{port}": getattr(self, port) for port in inputs}
            return Instance(name, i_clk=ClockSignal(), **ports, o_read_data=self.read_data)

        m = Module()
        m.submodules.memory = memory = Memory(shape=unsigned(spec.bits), depth=spec.rows, init=[])
        read, write = memory.read_port(), memory.write_port(granularity=spec.granule_bits)
        m.d.comb += [
            read.en.eq(self.read),
            read.addr.eq(self.read_row),
            self.read_data.eq(read.data),
            write.en.eq(self.write),
            write.addr.eq(self.write_row),
            write.data.eq(self.write_data),
        ]
        return m


def _rtlil(name, spec):
    """Return the module in RTLIL, as Amaranth emits it, but without the initial contents."""
    enables = " ".join(
        f"\\write [{granule}]"
        for granule in reversed(range(spec.granules))
        for _ in range(spec.granule_bits)
    )
    unknown = f"{spec.bits}'" + "x" * spec.bits
    return f"""\
module \\{name}
  wire input 0 \\clk
  wire input 1 \\read
  wire width {spec.row_bits} input 2 \\read_row
  wire width {spec.granules} input 3 \\write
  wire width {spec.row_bits} input 4 \\write_row
  wire width {spec.bits} input 5 \\write_data
  wire width {spec.bits} output 6 \\read_data
  memory width {spec.bits} size {spec.rows} \\words
  cell $memwr_v2 $write
    parameter \\MEMID "\\\\words"
    parameter \\ABITS {spec.row_bits}
    parameter \\WIDTH {spec.bits}
    parameter \\CLK_ENABLE 1
    parameter \\CLK_POLARITY 1
    parameter \\PORTID 0
    parameter \\PRIORITY_MASK 0
    connect \\ADDR \\write_row
    connect \\DATA \\write_data
    connect \\EN {{ {enables} }}
    connect \\CLK \\clk
  end
  cell $memrd_v2 $read
    parameter \\MEMID "\\\\words"
    parameter \\ABITS {spec.row_bits}
    parameter \\WIDTH {spec.bits}
    parameter \\TRANSPARENCY_MASK 1'0
    parameter \\COLLISION_X_MASK 1'0
    parameter \\ARST_VALUE {unknown}
    parameter \\SRST_VALUE {unknown}
    parameter \\INIT_VALUE {unknown}
    parameter \\CE_OVER_SRST 0
    parameter \\CLK_ENABLE 1
    parameter \\CLK_POLARITY 1
    connect \\ADDR \\read_row
    connect \\DATA \\read_data
    connect \\EN \\read
    connect \\CLK \\clk
    connect \\ARST 1'0
    connect \\SRST 1'0
  end
end
"""

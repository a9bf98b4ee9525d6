"""Packed cells of the systolic array: the products of two columns in each DSP48E2.

The pre-adder of a DSP joins the weights of a left and a right column, ``right * 2**19 + left``, and
the multiplier gives both products with the activation that the columns share. In a cascade of DSPs
the products of up to 16 rows add up. The first DSP adds `BIAS` as well, so that the lower field is
never negative and takes nothing from the upper one: the lower field is the left sum plus the bias,
and the upper one is the right sum.

Source: Fu et al., "Deep Learning with INT8 Optimization on Xilinx Devices", WP486, 2017, which adds
up seven products and corrects the upper field.
"""

from typing import Any

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.systolic import FIELD_BITS
from fpgapipe.hw.rtl.gemm.skew import Deskew, Skew
from fpgapipe.hw.rtl.lib.modules import instance_of, makes_modules

BIAS = 1 << (FIELD_BITS - 1)
"""Number that the first DSP of a cascade adds to its lower field."""

SUM_BITS = 48
"""Width of the sums in a cascade, bits."""

LOAD_DELAY = 2
"""Cycles by which weights are later at packed cells than at plain ones."""

_BITS = 8
"""Width of operands, bits."""

# Modes of the DSP. INMODE 00100: the pre-adder adds D to A2. The multiplier takes its sum from AD.
# OPMODE: X and Y are the product; Z is 0 or the cascade's sum from above; W is 0 or the constant.
_INMODE = 0b00100
_FIRST_OPMODE = 0b10_000_0101
_LATER_OPMODE = 0b00_001_0101

_PARAMETERS = {
    "AMULTSEL": "AD",
    "BMULTSEL": "B",
    "PREADDINSEL": "A",
    "USE_MULT": "MULTIPLY",
    "USE_SIMD": "ONE48",
    **dict.fromkeys(("ACASCREG", "ADREG", "AREG", "BCASCREG", "BREG", "DREG", "MREG", "PREG"), 1),
    **dict.fromkeys(
        ("ALUMODEREG", "CARRYINREG", "CARRYINSELREG", "CREG", "INMODEREG", "OPMODEREG"), 0
    ),
    "RND": Const(BIAS, SUM_BITS),
}

_UNUSED = {
    **{"ACIN": 30, "ALUMODE": 4, "BCIN": 18, "C": 48, "CARRYCASCIN": 1, "CARRYIN": 1},
    **{"CARRYINSEL": 3, "CEA1": 1, "CEALUMODE": 1, "CEB1": 1, "CEC": 1, "CECARRYIN": 1},
    **{"CECTRL": 1, "CEINMODE": 1, "MULTSIGNIN": 1, "RSTA": 1, "RSTALLCARRYIN": 1},
    **{"RSTALUMODE": 1, "RSTB": 1, "RSTC": 1, "RSTCTRL": 1, "RSTD": 1, "RSTINMODE": 1},
    **{"RSTM": 1, "RSTP": 1},
}
"""Widths of the inputs that are 0."""


def packed_dsp(
    is_first: bool,
    advance: Any,
    activation: Any,
    weight: Any,
    load: Any,
    *,
    swap: Any,
    above: Any,
    **outputs: Any,
) -> Any:
    """Return an instance of DSP48E2 with the cells of a row in two columns.

    Parameters
    ----------
    is_first : bool
        Whether it is the first of its cascade, which adds the bias instead of a sum from above.
    advance : Value
        Clock enable.
    activation, weight : Value
        Operands, signed and never -128.
    load : Value
        Whether the weight becomes the next one of the left and of the right column, 2 bits.
    swap : Value
        Whether the next weights become the active ones.
    above : Value
        Sum from above, `SUM_BITS`.
    outputs : Value
        What the outputs are connected to, ``o_PCOUT`` and ``o_P``.
    """
    return Instance(
        "DSP48E2",
        **{f"p_{name}": value for name, value in _PARAMETERS.items()},
        **{f"i_{name}": Const(0, bits) for name, bits in _UNUSED.items()},
        i_CLK=ClockSignal(),
        i_INMODE=Const(_INMODE, 5),
        i_OPMODE=Const(_FIRST_OPMODE if is_first else _LATER_OPMODE, 9),
        i_A=_extended(weight, 30),
        i_B=_extended(activation, 18),
        i_D=Cat(Const(0, FIELD_BITS), weight),
        i_CEA2=load[0],
        i_CED=load[1],
        i_CEAD=swap,
        i_CEB2=advance,
        i_CEM=advance,
        i_CEP=advance,
        i_PCIN=above,
        **outputs,
    )


def _extended(operand, width):
    """Sign extension of an operand."""
    return Cat(operand, operand[-1].replicate(width - _BITS))


class PackedPair(wiring.Component):
    """A cascade of DSPs that have the cells of two columns and up to 16 rows.

    In a cycle with ``advance`` high, a DSP takes an activation, multiplies the one before it by its
    active weights, and adds the product before that to the sum from above. So the activation of row
    r is to come r cycles after that of row 0, and the sums of the last row of ``rows`` are there
    ``rows + 2`` cycles after the activation of row 0.

    The next weights wait in registers of the DSP, and its pre-adder joins them when they become the
    active ones. Marks of ``load`` travel downwards, as in `SystolicRow`. The mark alone enables the
    register, so that a DSP with a mark takes the same weight in every cycle with ``advance`` low;
    therefore no swap may be at a DSP together with a load.

    Members
    -------
    advance : In(1)
        Clock enable.
    activations, weights : In(8 * rows)
        Operands of all rows, signed and never -128.
    load : In(2)
        Marks of ``load`` at row 0, for the left and the right column.
    swaps : In(rows)
        Rows in which the next weights become the active ones after this cycle.
    sums : Out(38)
        Sum of the left column plus `BIAS`, in the lower half, and sum of the right column.
    """

    def __init__(self, spec: int) -> None:
        self.spec = spec
        super().__init__(
            {
                "advance": In(1),
                "activations": In(_BITS * spec),
                "weights": In(_BITS * spec),
                "load": In(2),
                "swaps": In(spec),
                "sums": Out(2 * FIELD_BITS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        rows = self.spec
        if makes_modules(platform):
            return instance_of(self, f"packed_pair_{rows}", platform)

        m = Module()
        marks = Signal(2 * rows)
        later_marks = Signal(2 * (rows - 1))
        m.d.comb += marks.eq(Cat(self.load, later_marks))
        with m.If(self.advance):
            m.d.sync += later_marks.eq(marks)
        above = Const(0, SUM_BITS)
        for row in range(rows):
            activation = self.activations.word_select(row, _BITS)
            weight = self.weights.word_select(row, _BITS)
            below = Signal(SUM_BITS, name=f"below{row}")
            total = Signal(SUM_BITS, name=f"total{row}")  # sums leave a cascade by another port
            m.submodules[f"dsp{row}"] = packed_dsp(
                *(row == 0, self.advance, activation, weight, marks.word_select(row, 2)),
                swap=self.advance & self.swaps[row],
                above=above,
                o_PCOUT=below,
                o_P=total,
            )
            above = below
        m.d.comb += self.sums.eq(total)
        return m


def packed_cells(m, spec, entering):
    """Add packed cells to a module, and return the sums of a vector.

    Row r is row ``q = r % 16`` of its cascade. With the pairs of columns counted from 0, a vector
    that enters in cycle t is at pair p in row q in cycle ``t + q + p``; its product with the active
    weights is made a cycle later, and so a swap is there in cycle ``s + q + p + 1``. The load of a
    column that enters in cycle l is in row q in cycle ``l + q + 2``. The load of column c enters no
    earlier than c cycles after the swap of the tile before, so that it comes to a DSP after that
    swap; and the last load of a tile enters before the tile's own swap, so that it comes to the
    last pair before that swap if there are two pairs or more.
    """
    advance, rows, pairs = entering.advance, spec.rows // spec.cascades, spec.cols // 2
    weights, marks = entering.weights.as_value(), entering.marks
    for stage in range(LOAD_DELAY):
        later_weights = Signal(len(weights), name=f"weights{stage}", reset_less=True)
        later_marks = Signal(spec.cols, name=f"marks{stage}")
        with m.If(advance):
            m.d.sync += [later_weights.eq(weights), later_marks.eq(marks)]
        weights, marks = later_weights, later_marks

    def wave(name, vector):
        """Activations or weights of all rows: row q is delayed by q cycles."""
        m.submodules[name] = skew = Skew(_BITS, rows)
        m.d.comb += [skew.advance.eq(advance), skew.i.as_value().eq(vector)]
        return Cat(skew.o)

    bits = _BITS * rows
    activations, its_weights = [], []
    for cascade in range(spec.cascades):
        vector = entering.vector.as_value().word_select(cascade, bits)
        activations.append(wave(f"skew{cascade}", vector))
        vector = weights.word_select(cascade, bits)
        its_weights.append(wave(f"skew_weights{cascade}", vector))

    m.submodules.deskew = deskew = Deskew(2 * spec.acc_bits, pairs)
    m.d.comb += deskew.advance.eq(advance)
    swaps = Signal(rows + pairs - 1)  # bit q + p: the swap is at row q and pair p
    with m.If(advance):
        m.d.sync += swaps.eq(Cat(entering.swap, swaps))
    for pair in range(pairs):
        sums = []
        for cascade in range(spec.cascades):
            m.submodules[f"cascade{cascade}_pair{pair}"] = cells = PackedPair(rows)
            m.d.comb += [
                cells.advance.eq(advance),
                cells.activations.eq(activations[cascade]),
                cells.weights.eq(its_weights[cascade]),
                cells.load.eq(marks.word_select(pair, 2)),
                cells.swaps.eq(swaps[pair:]),
            ]
            sums.append(cells.sums)
            if pair < pairs - 1:
                right = Signal(bits, name=f"activations{cascade}_{pair}", reset_less=True)
                with m.If(advance):
                    m.d.sync += right.eq(activations[cascade])
                activations[cascade] = right
        totals = [Signal(signed(spec.acc_bits), name=f"{side}{pair}") for side in ("left", "right")]
        for total, column in zip(totals, _columns(m, advance, sums), strict=True):
            m.d.comb += total.eq(column)
        m.d.comb += deskew.i[pair].eq(Cat(totals))
    return deskew.o


def _columns(m, advance, sums):
    """Sums of the left and the right column of a pair, which are signed, from its cascades."""
    lefts = [each[:FIELD_BITS] for each in sums]
    rights = [each[FIELD_BITS:].as_signed() for each in sums]
    if len(sums) == 1:
        return _without_bias(lefts[0]), rights[0]
    bits = FIELD_BITS + 1
    left, right = Signal(bits, reset_less=True), Signal(signed(bits), reset_less=True)
    with m.If(advance):
        m.d.sync += [left.eq(lefts[0] + lefts[1]), right.eq(rights[0] + rights[1])]
    return _without_bias(left), right


def _without_bias(total):
    """A sum without the bias, half of the range, so that only its highest bit changes."""
    return Cat(total[:-1], ~total[-1]).as_signed()

"""Proofs of packed cells: a DSP48E2 is two plain cells, alone and in a cascade of 16."""

from typing import Any

from amaranth.hdl import Assert, Assume, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from fpgapipe.hw.hls_models.spec.systolic import CASCADE_ROWS, FIELD_BITS
from fpgapipe.hw.rtl.gemm.packed import BIAS, SUM_BITS, packed_dsp

MOST = 127
"""Largest absolute value of an operand."""

_INSIDE = {"A2": 27, "D": 27, "AD": 27, "B2": 18, "M": 64}
"""Widths of the registers of the DSP's model, bits."""

_OPERAND, _PRODUCT, _FIELD = signed(8), signed(16), signed(FIELD_BITS)


class PackedDspProof(wiring.Component):
    """Proof that a DSP with packed cells does what two plain cells in one row do.

    The plain cells are registers of this component: next and active weights, the activation, the
    products, and the sums. The DSP's sums are their sums in two fields. Pauses, loads and swaps are
    arbitrary, but a swap and a load never meet.

    That the product of both weights and an activation has both products is assumed: tests/rtl
    simulates all combinations of three operands, and solvers are slow at multipliers.

    A DSP that is not the first gets any sums from above that up to 15 products may have; the sum of
    a product more fits its field, so that by induction all sums of a cascade of 16 are those of the
    plain cells.
    """

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        super().__init__(
            {
                "advance": In(1),
                "activation": In(_OPERAND),
                "weight": In(_OPERAND),
                "load": In(2),
                "swap": In(1),
                "above_left": In(_FIELD),
                "above_right": In(_FIELD),
            }
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        # The DSP has no reset either.
        names = ("next_left", "next_right", "left", "right", "activation")
        next_left, next_right, left, right, activation = (
            Signal(_OPERAND, name=name, reset_less=True) for name in names
        )
        left_product, right_product = (
            Signal(_PRODUCT, name=f"{side}_product", reset_less=True) for side in ("left", "right")
        )
        left_sum, right_sum = (
            Signal(_FIELD, name=f"{side}_sum", reset_less=True) for side in ("left", "right")
        )
        has_sum = Signal(reset_less=True)
        from_left = 0 if self._is_first else self.above_left
        from_right = 0 if self._is_first else self.above_right
        with m.If(self.load[0]):
            m.d.sync += next_left.eq(self.weight)
        with m.If(self.load[1]):
            m.d.sync += next_right.eq(self.weight)
        with m.If(self.advance):
            with m.If(self.swap):
                m.d.sync += [left.eq(next_left), right.eq(next_right)]
            m.d.sync += [
                activation.eq(self.activation),
                left_product.eq(left * activation),
                right_product.eq(right * activation),
                left_sum.eq(from_left + left_product),
                right_sum.eq(from_right + right_product),
                has_sum.eq(1),
            ]

        inside = {name: Signal(signed(bits), name=name) for name, bits in _INSIDE.items()}
        total = Signal(signed(SUM_BITS))
        above = Signal(signed(SUM_BITS))
        m.d.comb += above.eq((self.above_right << FIELD_BITS) + self.above_left + BIAS)
        m.submodules.dsp = packed_dsp(
            *(self._is_first, self.advance, self.activation.as_unsigned()),
            *(self.weight.as_unsigned(), self.load),
            swap=self.advance & self.swap,
            above=above.as_unsigned(),
            o_P=total,
            **{f"o_FORMAL_{name}": value for name, value in inside.items()},
        )
        most = (CASCADE_ROWS - 1) * MOST**2
        m.d.comb += [
            Assume((self.activation >= -MOST) & (self.weight >= -MOST)),
            Assume(~(self.swap & self.load.any())),
            *(Assume((each >= -most) & (each <= most)) for each in (from_left, from_right)),
            *(
                Assert(each >= -MOST, "operands of plain cells are operands")
                for each in (next_left, next_right, left, right, activation)
            ),
            Assert(inside["A2"] == next_left, "A2 is the next left weight"),
            Assert(inside["D"] == next_right << FIELD_BITS, "D is the next right weight"),
            Assert(inside["AD"] == (right << FIELD_BITS) + left, "AD has both active weights"),
            Assert(inside["B2"] == activation, "B2 is the activation"),
            Assume(inside["M"] == (right_product << FIELD_BITS) + left_product),
        ]
        for product in (left_product, right_product):
            m.d.comb += Assert(
                (product >= -(MOST**2)) & (product <= MOST**2), "products are of operands"
            )
        with m.If(has_sum):
            m.d.comb += [
                Assert(
                    total[:FIELD_BITS] == (left_sum + BIAS)[:FIELD_BITS],
                    "the lower field is the left sum and the bias",
                ),
                Assert(
                    total[FIELD_BITS:].as_signed() == right_sum, "the upper field is the right sum"
                ),
            ]
        return m


def packed_dsp_proof(is_first: bool = False) -> PackedDspProof:
    """Proof of the first DSP of a cascade, or of any other one."""
    return PackedDspProof(is_first)

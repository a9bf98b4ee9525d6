"""Weight-stationary systolic array: tile shape, exact matrix product, cycles."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

CASCADE_ROWS = 16
"""Most packed cells in a cascade: so many products add up in the lower field without overflow."""

FIELD_BITS = 19
"""Width of the lower field of a packed sum, and so the offset of the upper field, bits."""


class Form(StrEnum):
    """How the cells of an array are made; the sums are the same.

    A `PLAIN` cell has a multiplier of its own. `PACKED` cells are the left and the right column of
    a pair in one DSP48E2, which multiplies both weights by the activation that they share. Their
    operands are never the most negative number.
    """

    PLAIN = "plain"
    PACKED = "packed"


@dataclass(frozen=True)
class SystolicSpec:
    """A grid of multiply-accumulate cells, the definition that model and gateware share.

    Each cell keeps one weight. A vector of ``rows`` activations enters on the left, and a vector of
    ``cols`` sums leaves at the bottom: ``sums = activations @ weights``. The sums are exact;
    nothing wraps. A *tile* is one set of weights with the vectors that are multiplied by it.

    Parameters
    ----------
    rows, cols : int
        Cells along the reduction axis and across it.
    operand_bits : int
        Width of the signed activations and weights, in bits.
    acc_bits : int
        Width of the signed sums, in bits. If 0, the attribute becomes the smallest width that holds
        every sum.
    form : Form
        How the cells are made. An array of packed cells has operands of 8 bits, an even number of
        columns, at least 4, and at most 16 rows or 32.

    Raises
    ------
    ValueError
        If a size is below its minimum or not one of the form, or ``acc_bits`` is too small for some
        sum.

    Notes
    -----
    Source: H. T. Kung, "Why Systolic Architectures?", IEEE Computer 15(1), 1982.
    """

    rows: int
    cols: int
    operand_bits: int = 8
    acc_bits: int = 0
    form: Form = Form.PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", Form(self.form))
        for name, minimum in (("rows", 1), ("cols", 1), ("operand_bits", 2)):
            value = getattr(self, name)
            if value < minimum:
                raise ValueError(f"systolic {name} must be at least {minimum}, not {value!r}")
        if self.is_packed:
            self._check_packed()
        # The largest sum adds `rows` squares of the operand that is farthest from zero. It is
        # positive, so the sign takes one more bit. Every other sum is closer to zero.
        enough = (self.rows * self.least_operand**2).bit_length() + 1
        if self.acc_bits == 0:
            object.__setattr__(self, "acc_bits", enough)
        if self.acc_bits < enough:
            raise ValueError(
                f"systolic acc_bits must be at least {enough} ({self.rows} products of "
                f"{self.operand_bits}-bit operands), not {self.acc_bits!r}"
            )

    def _check_packed(self) -> None:
        if self.operand_bits != 8:
            raise ValueError(f"packed operand_bits must be 8, not {self.operand_bits!r}")
        if self.rows > CASCADE_ROWS and self.rows != 2 * CASCADE_ROWS:
            raise ValueError(
                f"packed rows must be 1..{CASCADE_ROWS} or {2 * CASCADE_ROWS}, not {self.rows!r}"
            )
        if self.cols < 4 or self.cols % 2:
            raise ValueError(f"packed cols must be even and at least 4, not {self.cols!r}")

    @property
    def is_packed(self) -> bool:
        """Whether the cells are packed."""
        return self.form is Form.PACKED

    @property
    def least_operand(self) -> int:
        """Least value of an operand."""
        return int(self.is_packed) - (1 << (self.operand_bits - 1))

    @property
    def cells(self) -> int:
        """Multiply-accumulates per cycle."""
        return self.rows * self.cols

    @property
    def dsps(self) -> int:
        """DSPs of the cells: one for each, or one for two that are packed."""
        return self.cells // 2 if self.is_packed else self.cells

    @property
    def cascades(self) -> int:
        """Cascades of packed cells in a pair of columns, whose sums are added below."""
        return -(-self.rows // CASCADE_ROWS)

    @property
    def least_scratchpad_bytes(self) -> int:
        """Bytes of two tiles of each operand, with elements of up to four bytes."""
        return 2 * 4 * self.rows * (self.rows + self.cols)

    def waits_for_fp32(self, vectors: int) -> bool:
        """Whether an array past which `vectors` go waits for weights that are read as FP32.

        Such a column of weights takes two cycles to be read; one of BF16 takes one.
        """
        return vectors < 2 * self.cols

    @property
    def load_cycles(self) -> int:
        """Cycles from the first column of a tile's weights to its first vector.

        A column enters in each cycle, and the cells take them over in one more.
        """
        return self.cols + 1

    @property
    def latency_cycles(self) -> int:
        """Cycles from accepting a vector to offering its sums.

        A vector takes one cycle per row on its way down and one per column on its way right; the
        first cell is counted in both, so these are ``rows + cols - 1`` cycles. One more is added
        because a cell's product waits in a register before it is added to the sum.

        Where cells are packed, a vector takes one cycle per pair of columns, and the cascades work
        at the same time. The activation waits in a register of the DSP, which takes another cycle,
        and the sum of two cascades takes one more.
        """
        if self.is_packed:
            down = min(self.rows, CASCADE_ROWS)
            return down + self.cols // 2 + self.cascades
        return self.rows + self.cols

    def compute(
        self, activations: NDArray[np.integer], weights: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Multiply the vectors of one tile by its weights.

        Parameters
        ----------
        activations : integer array, shape (m, rows)
            Signed values of ``operand_bits``.
        weights : integer array, shape (rows, cols)
            Signed values of ``operand_bits``.

        Returns
        -------
        int64 array, shape (m, cols)

        Raises
        ------
        TypeError
            If an array does not hold integers.
        ValueError
            If a shape or a value does not fit.
        """
        activations, weights = np.asarray(activations), np.asarray(weights)
        if activations.ndim != 2 or activations.shape[1] != self.rows:
            raise ValueError(
                f"systolic activations must have shape (m, {self.rows}), not {activations.shape}"
            )
        if weights.shape != (self.rows, self.cols):
            raise ValueError(
                f"systolic weights must have shape ({self.rows}, {self.cols}), not {weights.shape}"
            )
        self.check_range("activations", activations)
        self.check_range("weights", weights)
        sums: NDArray[np.int64] = activations.astype(np.int64) @ weights.astype(np.int64)
        return sums

    def cycles(self, m: int, num_tiles: int = 1) -> int:
        """Cycles of `num_tiles` tiles of `m` vectors each, if no stream ever pauses.

        The count begins with the cycle that accepts the first column of weights and ends with the
        one that delivers the last sums, both included. The first tile waits for its ``cols``
        columns of weights, and one cycle for the cells to take them over. A later tile follows its
        predecessor after ``m`` cycles or after ``cols`` cycles, whichever is longer, because its
        weights load meanwhile.

        Raises
        ------
        ValueError
            If `m` or `num_tiles` is below 1.
        """
        for name, value in (("m", m), ("num_tiles", num_tiles)):
            if value < 1:
                raise ValueError(f"systolic {name} must be at least 1, not {value!r}")
        later = (num_tiles - 1) * max(m, self.cols)
        return self.load_cycles + later + m + self.latency_cycles

    def check_range(self, what: str, values: NDArray[np.integer]) -> None:
        """Refuse values that are no operands.

        Raises
        ------
        TypeError
            If the values are no integers.
        ValueError
            If a value is too large or too small.
        """
        if not np.issubdtype(values.dtype, np.integer):
            raise TypeError(f"systolic {what} must be integers, not {values.dtype}")
        least, most = self.least_operand, (1 << (self.operand_bits - 1)) - 1
        outside = values[(values < least) | (values > most)]
        if outside.size:
            kind = "packed " * self.is_packed + f"{self.operand_bits}-bit"
            raise ValueError(
                f"systolic {what} must be in {least}..{most} ({kind} operands), not "
                f"{outside.flat[0]}"
            )

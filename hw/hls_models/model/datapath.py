"""Datapath of a GEMM engine (array and FP32 accumulators): bit-exact results, and cycles."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.spec.systolic import Form, SystolicSpec

ACC_READ_CYCLES = 2
"""Cycles from an accumulator's address to its value at the adder."""

ACC_CYCLES = ACC_READ_CYCLES + fp32.ADD_CYCLES + 1
"""Cycles from reading an accumulator to the first cycle in which its new value can be read."""

RESULT_CYCLES = fp32.FROM_SUM_CYCLES + fp32.ADD_CYCLES
"""Cycles from a vector's sums at the array to the accumulated results."""

_OPERAND_BITS = 8
_CHUNK = 1 << 20
"""Number of sums that are computed at a time, so that they stay in the cache of a processor."""


@dataclass(frozen=True)
class DatapathSpec:
    """An array with FP32 accumulators below, the definition that model and gateware share.

    A product has `n` columns of `k` tiles each, which are processed one after the other. A tile
    takes ``cols`` columns of weights, each with ``rows`` int8 elements and the E8M0 code of their
    block, and then `m` vectors, each with ``rows`` elements and a code. The sums of a vector are
    converted to FP32 with the codes of vector and column, and are added to the vector's
    accumulators. All tiles of a column of tiles use the same accumulators.

    If the array has fewer than 32 rows, a block of 32 elements goes to it in parts, each with the
    block's code. The parts are converted and added one by one, so the rounding depends on the
    number of rows.

    Parameters
    ----------
    rows, cols : int
        Rows and columns of the array.
    acc_depth : int
        Number of accumulators below each column, a power of two; addresses are taken modulo this.
    form : Form
        How the cells of the array are made.

    Raises
    ------
    ValueError
        If a size is out of range.
    """

    rows: int
    cols: int
    acc_depth: int = 1024
    form: Form = Form.PLAIN

    def __post_init__(self) -> None:
        if self.acc_depth < 2 or self.acc_depth & (self.acc_depth - 1):
            raise ValueError(
                f"datapath acc_depth must be a power of two, at least 2, not {self.acc_depth!r}"
            )
        fp32.SumSpec(self.array.acc_bits)

    @property
    def array(self) -> SystolicSpec:
        """The array."""
        return SystolicSpec(self.rows, self.cols, _OPERAND_BITS, form=self.form)

    @property
    def latency_cycles(self) -> int:
        """Cycles from accepting a vector to offering its results."""
        return self.array.latency_cycles + RESULT_CYCLES

    def compute(
        self,
        m: int,
        k: int,
        n: int,
        a: NDArray[np.int8],
        a_codes: NDArray[np.uint8],
        b: NDArray[np.int8],
        b_codes: NDArray[np.uint8],
        accumulators: NDArray[np.float32],
        *,
        first: bool = True,
        last: bool = True,
        acc_base: int = 0,
        acc_step: int = 0,
    ) -> NDArray[np.float32] | None:
        """Compute a product.

        Parameters
        ----------
        m, k, n : int
            Vectors per tile, tiles per column of tiles, and columns of tiles.
        a : int8 array, shape (n * k * m, rows)
            Vectors, in order.
        a_codes : uint8 array, shape (n * k * m,)
            Codes of the vectors.
        b : int8 array, shape (n * k * cols, rows)
            Columns of weights, in order.
        b_codes : uint8 array, shape (n * k * cols,)
            Codes of the columns.
        accumulators : float32 array, shape (acc_depth, cols)
            Content of the accumulators, which is changed.
        first, last : bool
            Whether the first tile of each column starts from zeros, and whether the sums of the
            last tile are results, which the accumulators then do not keep.
        acc_base, acc_step : int
            Accumulator of the first vector of the first column of tiles, and the distance from it
            to that of the next column of tiles.

        Returns
        -------
        float32 array, shape (n * m, cols), or None
            The results, if `last`.

        Raises
        ------
        ValueError
            If an operand's shape is wrong, or one of its elements is -128 where cells are packed.
        """
        tiles = n * k
        a, a_codes = _operand("a", a, a_codes, tiles, m, self.rows)
        b, b_codes = _operand("b", b, b_codes, tiles, self.cols, self.rows)
        if self.array.is_packed:
            self.array.check_range("activations", a)
            self.array.check_range("weights", b)
        if accumulators.shape != (self.acc_depth, self.cols):
            raise ValueError(
                f"datapath accumulators must have shape ({self.acc_depth}, {self.cols}), not "
                f"{accumulators.shape}"
            )
        results = np.empty((n, m, self.cols), np.float32) if last else None
        at_once = max(1, _CHUNK // (m * self.cols))
        for begin in range(0, tiles, at_once):
            part = slice(begin, begin + at_once)
            terms = _terms(a[part], a_codes[part], b[part], b_codes[part])
            for tile, term in enumerate(terms, begin):
                column, step = divmod(tile, k)
                target = results[column] if results is not None and step == k - 1 else None
                base = acc_base + column * acc_step
                self._accumulate(term, accumulators, base, first and step == 0, target)
        return None if results is None else results.reshape(n * m, self.cols)

    def _accumulate(
        self,
        term: NDArray[np.float32],
        accumulators: NDArray[np.float32],
        base: int,
        from_zero: bool,
        target: NDArray[np.float32] | None,
    ) -> None:
        """Add a tile's terms, shape (m, cols), to accumulators, or store the sums in `target`."""
        # If there are more vectors than accumulators, addresses wrap around.
        for begin in range(0, len(term), self.acc_depth):
            part = term[begin : begin + self.acc_depth]
            index = (base + begin + np.arange(len(part))) % self.acc_depth
            old = np.zeros_like(part) if from_zero else accumulators[index]
            new = fp32.add(old, part)
            if target is None:
                accumulators[index] = new
            else:
                target[begin : begin + self.acc_depth] = new

    def tile_cycles(self, m: int) -> int:
        """Cycles of a tile of `m` vectors that is added to the sums of the previous tile."""
        return max(m, self.cols, ACC_CYCLES)

    def cycles(self, m: int, k: int, n: int) -> int:
        """Cycles of a complete product (`first` and `last`) if no stream ever pauses.

        The count begins with the cycle that takes the first column of weights and ends with the one
        that delivers the last result, both included. Consecutive products have no gap between them:
        the first tile of the next one follows after ``max(m, cols)`` cycles like any other tile.

        Raises
        ------
        ValueError
            If a size is below 1.
        """
        for name, value in (("m", m), ("k", k), ("n", n)):
            if value < 1:
                raise ValueError(f"datapath {name} must be at least 1, not {value!r}")
        # Only a tile that is added to the previous one waits for that one's sums. Meanwhile, the
        # next tile's weights load, so that a new column of tiles can follow earlier by as much.
        added = self.tile_cycles(m)
        waited = added - max(m, self.cols) if k > 1 else 0
        between = n * (k - 1) * added + (n - 1) * max(m, self.cols - waited)
        return self.array.load_cycles + between + m + self.latency_cycles


def _operand(
    name: str,
    elements: NDArray[np.int8],
    codes: NDArray[np.uint8],
    tiles: int,
    vectors: int,
    rows: int,
) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Reshape an operand into tiles."""
    if elements.shape != (tiles * vectors, rows) or codes.shape != (tiles * vectors,):
        raise ValueError(
            f"datapath {name} must have shape ({tiles * vectors}, {rows}) and a code for each "
            f"vector, not {elements.shape} and {codes.shape}"
        )
    return elements.reshape(tiles, vectors, rows), codes.reshape(tiles, vectors)


def _terms(
    a: NDArray[np.int8],
    a_codes: NDArray[np.uint8],
    b: NDArray[np.int8],
    b_codes: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """Return the sums of some tiles in FP32, shape (tiles, m, cols)."""
    # FP32 holds every partial sum exactly (MAX_SUM_BITS), and is far faster than integers.
    sums = a.astype(np.float32) @ b.astype(np.float32).transpose(0, 2, 1)
    return fp32.from_sum(
        sums.astype(np.int32), a_codes[:, :, None].astype(np.int64), b_codes[:, None, :]
    )

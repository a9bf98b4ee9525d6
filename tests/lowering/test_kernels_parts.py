"""Copies of rows on the vector engine."""

import numpy as np
import pytest
from kernel_cases import REGION, SMALL_REGION, drawn, execute, same_bits

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.parts import Rows, copy_rows
from fpgapipe.lowering.tiling.kernel import Region, Tensor

CASES = {
    "one element": ((1, 1), (3, 1), (5, 1)),
    "contiguous": ((7, 33), (2, 33), (31, 33)),
    "into columns": ((40, 3), (0, 3), (5, 10)),
    "out of columns": ((40, 5), (3, 11), (0, 5)),
    "between columns": ((19, 48), (16, 80), (7, 97)),
    "wide rows": ((3, 2100), (1, 2101), (0, 2100)),
    "many rows": ((3000, 2), (1, 3), (4, 6)),
}


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16), (FP32, BF16)], ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("region", [REGION, SMALL_REGION, Region(0, 1 << 12)], ids=str)
def test_copies_rows_and_nothing_else(case, formats, region):
    (rows, width), read, written = CASES[case]
    sizes = [first + rows * pitch + 9 for first, pitch in (read, written)]
    x, y = (Tensor(n, (s,), f) for n, s, f in zip("xy", sizes, formats, strict=True))
    kernel = copy_rows("t", x, y, (rows, width), Rows(*read), Rows(*written), region)
    before = drawn((sizes[1],))
    found = execute([kernel], [x, y], {"x": drawn((sizes[0],)), "y": before})

    def indices(first, pitch):
        return (first + pitch * np.arange(rows)[:, None] + np.arange(width)).ravel()

    expected = formats[1].decode(formats[1].encode(before), (sizes[1],)).copy()
    taken = found["x"][indices(*read)]
    expected[indices(*written)] = formats[1].decode(formats[1].encode(taken), taken.shape)
    assert same_bits(found["y"], expected)


def test_refuses_rows_outside():
    x, y = Tensor("x", (10,)), Tensor("y", (12,))
    with pytest.raises(ValueError, match=r"^3 rows of 4 elements, 4 apart from element 0 on"):
        copy_rows("t", x, y, (3, 4), Rows(0, 4), Rows(0, 4), REGION)
    with pytest.raises(ValueError, match="are no part of y of 12"):
        copy_rows("t", x, y, (2, 4), Rows(0, 4), Rows(0, 3), REGION)

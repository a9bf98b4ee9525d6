"""Transposition on the vector engine."""

import numpy as np
import pytest
from kernel_cases import REGION, SMALL_REGION, drawn, execute, same_bits

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.layout import transpose
from fpgapipe.lowering.tiling.kernel import Region, Tensor


@pytest.mark.parametrize(
    "formats", [(FP32, FP32), (BF16, BF16), (FP32, BF16), (BF16, FP32)], ids=str
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 37), (37, 1), (33, 70), (300, 129)], ids=str)
def test_transposes_any_matrix(shape, formats):
    x, y = Tensor("x", shape, formats[0]), Tensor("y", shape[::-1], formats[1])
    found = execute([transpose("t", x, y, REGION)], [x, y], {"x": drawn(shape)})
    expected = found["x"].T if formats[1] == 4 else found["y"]
    assert same_bits(found["y"], np.ascontiguousarray(expected))
    np.testing.assert_allclose(found["y"], found["x"].T, rtol=2**-8)
    small = execute([transpose("t", x, y, SMALL_REGION)], [x, y], {"x": drawn(shape)})
    assert same_bits(small["y"], found["y"])


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16)], ids=str)
@pytest.mark.parametrize("shape", [(5, 4, 3), (40, 16, 21), (3, 130, 70)], ids=str)
def test_transposes_each_of_several_matrices(shape, formats):
    number, rows, columns = shape
    x, y = Tensor("x", shape, formats[0]), Tensor("y", (number, columns, rows), formats[1])
    for region in (REGION, SMALL_REGION, Region(0, 1 << 13)):
        found = execute([transpose("t", x, y, region)], [x, y], {"x": drawn(shape)})
        assert same_bits(found["y"], np.ascontiguousarray(found["x"].transpose(0, 2, 1)))


def test_refuses_what_does_not_fit():
    x = Tensor("x", (3, 5))
    with pytest.raises(ValueError, match=r"^transposed tensor y must be 5 x 3, not \(3, 5\)$"):
        transpose("t", x, Tensor("y", (3, 5)), REGION)
    with pytest.raises(ValueError, match=r"^kernel t needs"):
        transpose("t", Tensor("x", (4000, 2)), Tensor("y", (2, 4000)), Region(0, 512))

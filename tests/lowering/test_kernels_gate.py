"""Functions of images and of one number for each channel, on the model of a core."""

import numpy as np
import pytest
from kernel_cases import REGION, SMALL_REGION, drawn, error, execute

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.gate import GATED, gate_gradient, gated
from fpgapipe.lowering.tiling.kernel import Region, Tensor

SHAPES = (
    (1, 1, 1, 1),
    (2, 7, 5, 3),
    (3, 9, 8, 20),
    (5, 1, 150, 18),
    (2, 6, 6, 400),
    (70, 2, 2, 16),
)

TINY = Region(0, 3 << 13)
"""Many pieces: few channels, and few rows of them."""

FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16), (BF16, FP32)], ids=str)
@pytest.mark.parametrize("region", [REGION, SMALL_REGION, TINY], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_passes(shape, region, formats):
    if region is TINY and shape[2] == 150:
        region = Region(0, 1 << 16)  # one row of 16 channels needs so much
    few = shape[0], shape[-1]
    x, dy = Tensor("x", shape, formats[0]), Tensor("dy", shape, formats[0])
    s = Tensor("s", few, formats[0])
    ys = [Tensor(function, shape, formats[1]) for function in GATED]
    ds, sums = Tensor("ds", few, formats[1]), Tensor("sums", few, formats[1])
    kernels = [
        *(gated(f"k{y.name}", y.name, x, s, y, region) for y in ys),
        gate_gradient("product", dy, x, ds, region),
        gate_gradient("sum", dy, None, sums, region),
    ]
    given = {"x": drawn(shape), "s": drawn(few, 1), "dy": drawn(shape, 2)}
    found = execute(kernels, [x, dy, s, *ys, ds, sums], given)
    images, numbers, upstream = (found[name].astype(np.float64) for name in ("x", "s", "dy"))
    near = 1e-6 if formats[1] is FP32 else 4e-3
    for y in ys:
        expected = FUNCTIONS[y.name](images, numbers[:, None, None])
        assert error(found[y.name], expected) < near
    assert error(found["ds"], (upstream * images).sum((1, 2))) < near
    assert error(found["sums"], upstream.sum((1, 2))) < near

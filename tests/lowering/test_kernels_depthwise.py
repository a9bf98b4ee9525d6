"""Depthwise convolutions on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, SMALL_REGION, drawn, error, execute

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.depthwise import depthwise, depthwise_input, depthwise_weight
from fpgapipe.lowering.kernels.pooling import Pool
from fpgapipe.lowering.tiling.kernel import Region, Tensor

CASES = {
    "one pixel": ((1, 1, 1, 1), Pool((1, 1), (1, 1))),
    "3x3": ((2, 7, 5, 3), Pool((3, 3), (1, 1), (1, 1, 1, 1))),
    "stride 2": ((3, 9, 8, 20), Pool((3, 3), (2, 2), (1, 1, 1, 1))),
    "5x5, no padding": ((1, 9, 11, 33), Pool((5, 5), (1, 1))),
    "7x7": ((2, 7, 7, 16), Pool((7, 7), (1, 1), (3, 3, 3, 3))),
    "rows left over": ((2, 10, 10, 5), Pool((3, 3), (3, 3))),
    "larger strides than windows": ((2, 9, 9, 5), Pool((2, 2), (3, 4))),
    "one sided": ((2, 6, 6, 17), Pool((3, 2), (2, 1), (0, 1, 1, 0))),
    "a row": ((2, 1, 40, 6), Pool((1, 5), (1, 2), (0, 2, 0, 2))),
    "wide": ((2, 5, 150, 18), Pool((3, 3), (1, 1), (1, 1, 1, 1))),
    "many channels": ((1, 6, 6, 400), Pool((3, 3), (2, 2), (1, 1, 1, 1))),
    "as large as the image": ((4, 4, 4, 12), Pool((4, 4), (4, 4))),
}

TINY = Region(0, 3 << 13)
"""Many pieces: few channels, and few rows of them."""


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16), (BF16, FP32)], ids=str)
@pytest.mark.parametrize("region", [REGION, SMALL_REGION, TINY], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_all_passes(case, region, formats):
    if region is TINY and case in ("wide", "5x5, no padding"):
        region = Region(0, 1 << 17)  # one row of 16 channels needs so much
    shape, window = CASES[case]
    batch, rows, columns, channels = shape
    out = (batch, *window.output(rows, columns), channels)
    taps = (1, *window.kernel, channels)
    x, y = Tensor("x", shape, formats[0]), Tensor("y", out, formats[1])
    dy, dx = Tensor("dy", out, formats[0]), Tensor("dx", shape, formats[1])
    weight, dw = Tensor("weight", taps), Tensor("dw", taps)
    kernels = [
        depthwise("forward", window, x, weight, y, region),
        depthwise_input("input", window, dy, weight, dx, region),
        depthwise_weight("weight", window, x, dy, dw, region),
    ]
    given = {"x": drawn(shape), "weight": drawn(taps, 1), "dy": drawn(out, 2)}
    found = execute(kernels, [x, y, weight, dy, dx, dw], given)

    def images(values):
        return torch.tensor(values.astype(np.float64)).permute(0, 3, 1, 2)

    leaf = images(found["x"]).requires_grad_()
    own = images(found["weight"]).permute(1, 0, 2, 3).requires_grad_()
    top, left, bottom, right = window.pad
    padded = torch.nn.functional.pad(leaf, (left, right, top, bottom))
    result = torch.nn.functional.conv2d(padded, own, stride=window.stride, groups=channels)
    result.backward(images(found["dy"]))
    near = 1e-6 if formats[1] is FP32 else 4e-3
    assert error(found["y"], result.detach().permute(0, 2, 3, 1).numpy()) < near
    assert error(found["dx"], leaf.grad.permute(0, 2, 3, 1).numpy()) < near
    assert error(found["dw"][0], own.grad[:, 0].permute(1, 2, 0).numpy()) < 1e-6


def test_shapes_that_do_not_fit():
    window = Pool((3, 3), (1, 1))
    x, y = Tensor("x", (1, 5, 5, 2)), Tensor("y", (1, 3, 3, 2))
    with pytest.raises(ValueError, match=r"weight w must have shape \(1, 3, 3, 2\), not"):
        depthwise("t", window, x, Tensor("w", (1, 3, 2, 2)), y, REGION)
    with pytest.raises(ValueError, match="must have shape"):
        depthwise("t", window, x, Tensor("w", (1, 3, 3, 2)), x, REGION)

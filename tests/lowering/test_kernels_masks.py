"""Comparisons and masks on the model of a core, against numpy bit for bit."""

import operator

import numpy as np
import pytest
from kernel_cases import REGION, drawn, execute, same_bits

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.elements.masks import OUTCOMES, compare, masked_fill
from fpgapipe.lowering.kernels.softmax import softmax, softmax_gradient
from fpgapipe.lowering.tiling.kernel import Tensor

INF, NAN = np.float32(np.inf), np.float32(np.nan)


@pytest.mark.parametrize("number", [0.0, 3.0, -2.5, 50257.0, 2.0**-100])
@pytest.mark.parametrize("function", OUTCOMES)
def test_comparisons(function, number):
    x = np.float32([*drawn(500, scale=3), *np.arange(-4, 5), INF, -INF, NAN, -0.0])
    nearest = np.nextafter(np.float32(number), np.float32([INF, -INF]))
    x = np.float32([*x, number, -number, *(nearest if number else ()), 50256, 50258])
    holds = getattr(operator, function)(x, np.float32(number))
    for then, otherwise in ((1.0, 0.0), (0.0, -INF), (-1e4, 0.25)):
        tensors = [Tensor("x", x.shape), Tensor("y", x.shape)]
        kernel = compare(
            "k", function, *tensors, REGION, number=number, then=then, otherwise=otherwise
        )
        found = execute([kernel], tensors, {"x": x})["y"]
        assert same_bits(found, np.where(holds, then, otherwise).astype(np.float32))


@pytest.mark.parametrize("number", [np.inf, -np.inf, 2.0**-101, 1e-40])
def test_numbers_that_cannot_be_compared_with(number):
    with pytest.raises(ValueError, match=r"^a number to compare with must be 0, or of a finite"):
        compare("k", "eq", Tensor("x", (5,)), Tensor("y", (5,)), REGION, number=number)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("scale", [1, -0.375])
@pytest.mark.parametrize(
    ("shape", "own", "element"),
    [
        ((1, 1), (1, 1), FP32),
        ((3, 2, 5, 7), (3, 1, 1, 7), BF16),
        ((3, 2, 5, 33), (3, 1, 5, 33), FP32),
        ((2, 70, 48), (2, 70, 1), FP32),
        ((300, 33), (1, 1), BF16),
    ],
)
def test_what_a_mask_hides(shape, own, element, scale, keeps):
    x, mask = drawn(shape), np.float32(np.random.default_rng(1).integers(0, 2, own))
    x.flat[0] = INF
    tensors = [Tensor("x", shape, element), Tensor("mask", own, element), Tensor("y", shape)]
    for value in (-np.inf, 0.0, -(2.0**100)):
        kernel = masked_fill("k", *tensors, REGION, value=value, keeps=keeps, scale=scale)
        found = execute([kernel], tensors, {"x": x, "mask": mask})
        expected = np.where((mask != 0) == keeps, found["x"] * np.float32(scale), value)
        assert same_bits(found["y"], expected.astype(np.float32))


@pytest.mark.parametrize("shape", [(6, 1), (6, 10), (6, 1100)])
def test_rows_that_are_hidden_wholly_give_zeros(shape):
    x = drawn(shape)
    x[1], x[4], x[2, 1:], x[3] = -INF, -INF, -INF, -3e38
    tensors = [Tensor(name, shape) for name in ("x", "y", "dy", "dx")]
    kernels = [
        softmax("s", *tensors[:2], REGION, empty=True),
        softmax_gradient("g", tensors[2], tensors[1], tensors[3], REGION),
    ]
    found = execute(kernels, tensors, {"x": x, "dy": drawn(shape, seed=1)})
    plain = execute([softmax("s", *tensors[:2], REGION)], tensors[:2], {"x": x})["y"]
    assert np.isnan(plain[[1, 4]]).all()
    plain[[1, 4]] = 0
    assert same_bits(found["y"], plain)
    assert np.isfinite(found["dx"]).all()
    assert not found["dx"][[1, 4]].any()

"""Softmax and functions of single elements on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute, same_bits

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels import pointwise
from fpgapipe.lowering.kernels.softmax import softmax
from fpgapipe.lowering.tiling.channels import small
from fpgapipe.lowering.tiling.kernel import Region, Tensor

NAN, INF = np.float32(np.nan), np.float32(np.inf)


def run(x, *, log=False, region=REGION, element_format=FP32, result_format=FP32):
    tensors = [Tensor("x", x.shape, element_format), Tensor("y", x.shape, result_format)]
    found = execute([softmax("softmax", *tensors, region, log=log)], tensors, {"x": x})
    return found["y"], found["x"]


def reference(x, *, log=False):
    function = torch.log_softmax if log else torch.softmax
    return function(torch.tensor(x, dtype=torch.float64), -1).numpy()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 10), (70, 17), (2, 3, 45), (130, 16), (9, 1100)])
def test_softmax(shape, log):
    x = drawn(shape, scale=3, offset=50)
    found, _ = run(x, log=log)
    assert error(found, reference(x, log=log)) < 1e-6
    if not log:
        np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("result_format", [BF16, FP32])
def test_softmax_of_bf16(result_format):
    found, rounded = run(drawn((37, 45), scale=3), element_format=BF16, result_format=result_format)
    tolerance = 1e-6 if result_format is FP32 else 2**-8
    assert error(found, reference(rounded)) < tolerance


@pytest.mark.parametrize("log", [False, True])
def test_softmax_does_not_depend_on_the_region(log):
    x = drawn((300, 33), scale=3)
    found = [run(x, log=log, region=Region(1 << 16, size))[0] for size in (1 << 20, 20 << 10)]
    assert same_bits(*found)


@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_infinities_and_nan(log):
    x = drawn((5, 20))
    x[0, 3], x[1, 0], x[2, 19], x[3] = -INF, INF, NAN, -INF
    found, expected = run(x, log=log)[0], reference(x, log=log)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert found[0, 3] == expected[0, 3]
    number = np.isfinite(expected)
    assert error(found[number], expected[number]) < 1e-6


def test_softmax_refuses_long_rows():
    tensors = Tensor("x", (1, 65_537)), Tensor("y", (1, 65_537))
    with pytest.raises(
        ValueError, match=r"^softmax must have rows of 1\.\.65536 elements, not 65537$"
    ):
        softmax("softmax", *tensors, REGION)


SPECIAL = np.float32([0.0, -0.0, 1.5, -1.5, INF, -INF, NAN, 3e38, -2e-38])


@pytest.mark.parametrize("function", pointwise.UNARY)
def test_unary(function):
    x = np.concatenate([drawn(1000, scale=4), SPECIAL])
    tensors = [Tensor("x", x.shape), Tensor("y", x.shape)]
    found = execute([pointwise.unary("f", function, *tensors, REGION)], tensors, {"x": x})["y"]
    exact = torch.tensor(x, dtype=torch.float64)
    expected = getattr(torch, function)(exact).numpy().astype(np.float32)
    if function in ("abs", "neg"):
        assert same_bits(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=3e-7, atol=2.0**-126)


@pytest.mark.parametrize("function", pointwise.BINARY)
def test_binary(function):
    a = np.concatenate([drawn(1000), np.repeat(SPECIAL, SPECIAL.size)])
    b = np.concatenate([drawn(1000, 1), np.tile(SPECIAL, SPECIAL.size)])
    tensors = [Tensor(name, a.shape) for name in "aby"]
    kernel = pointwise.binary("f", function, *tensors, REGION)
    found = execute([kernel], tensors, {"a": a, "b": b})["y"]
    name = {"max": "maximum", "min": "minimum"}.get(function, function)
    expected = getattr(torch, name)(torch.tensor(a), torch.tensor(b)).numpy()
    if function == "div":
        # The reciprocal of 3e38 is subnormal, and so is that of -2e-38 times much.
        plain = np.abs(b) < 1e38
        np.testing.assert_allclose(found[plain], expected[plain], rtol=4e-7, atol=2.0**-126)
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-126)


@pytest.mark.parametrize("function", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("shape", [(1, 5), (4, 3, 20), (700, 33)])
def test_by_channel(function, shape):
    x, row = drawn(shape), drawn(shape[-1], 1)
    tensors = [Tensor("x", x.shape), Tensor("row", row.shape), Tensor("y", x.shape)]
    factors = small("factors", 2, shape[-1])
    kernels = pointwise.by_channel("f", function, *tensors, REGION, factors=factors)
    found = execute(kernels, [*tensors, factors], {"x": x, "row": row})["y"]
    expected = getattr(torch, function)(torch.tensor(x), torch.tensor(row)).numpy()
    if function == "div":
        np.testing.assert_allclose(found, expected, rtol=4e-7)
    else:
        assert same_bits(found, expected)


def test_by_channel_needs_a_place_for_factors():
    tensors = Tensor("x", (2, 3)), Tensor("row", (3,)), Tensor("y", (2, 3))
    with pytest.raises(
        ValueError, match=r"^mul by channels must have a place for factors, not none$"
    ):
        pointwise.by_channel("f", "mul", *tensors, REGION)

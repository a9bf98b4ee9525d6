"""Activation functions and their gradients on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute
from torch.nn import functional

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.functions import FUNCTIONS, apply, gradient
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.network.operators.pointwise import ACTIVATIONS

SHAPES = [(1,), (2, 3, 5, 3), (70, 16), (3, 7, 9, 33), (40_000,)]


def reference(function, x, alpha=1.0):
    if function == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if function == "elu":
        return functional.elu(x, alpha)
    return getattr(functional, function)(x)


def both_ways(function, x, dy, element_format=FP32, alpha=1.0):
    """Result and gradient of the core and, in FP64, of PyTorch, for the same x and kept values."""
    shape = x.shape
    names = ("x", "y", "dy", "dx")
    tensors = [Tensor(name, shape, element_format) for name in names]
    by_name = dict(zip(names, tensors, strict=True))
    kernels = [
        apply("f", function, by_name["x"], by_name["y"], REGION, alpha=alpha),
        gradient("g", function, by_name["dy"], by_name["x"], by_name["dx"], REGION, alpha=alpha),
    ]
    found = execute(kernels, tensors, {"x": x, "dy": dy})
    leaf = torch.tensor(found["x"].astype(np.float64), requires_grad=True)
    result = reference(function, leaf, alpha)
    result.backward(torch.tensor(found["dy"].astype(np.float64)))
    return found, result.detach().numpy(), leaf.grad.numpy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_and_gradient(function, shape):
    found, y, dx = both_ways(function, 3 * drawn(shape), drawn(shape, 1))
    assert error(found["y"], y) < 1e-6
    assert error(found["dx"], dx) < 1e-6


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_element_is_near(function):
    """Over the whole range, in absolute terms; and exactly 0 where the function is."""
    x = np.concatenate([np.linspace(-12, 12, 5_001), [0.0, -0.0, 3, -3, 6, 1e-30, 90, -90]])
    x = x.astype(np.float32)
    found, y, dx = both_ways(function, x, np.ones_like(x))
    kinks = np.isin(np.abs(x), (3, 6))  # one of two derivatives
    assert np.abs(found["y"] - y).max() <= 5e-7 * np.maximum(np.abs(y), 1).max()
    assert (np.abs(found["y"] - y) <= 2e-6 * np.maximum(np.abs(y), 1)).all()
    assert (np.abs(found["dx"] - dx) <= 2e-6)[~kinks].all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_features_in_bf16(function):
    found, y, dx = both_ways(function, drawn((300, 7)), drawn((300, 7), 1), BF16)
    assert error(found["y"], y) < 4e-3
    assert error(found["dx"], dx) < 8e-3


@pytest.mark.parametrize("alpha", [0.5, 2.0, 0.0])
def test_the_scale_of_elu(alpha):
    found, y, dx = both_ways("elu", drawn((50, 9)), drawn((50, 9), 1), alpha=alpha)
    assert error(found["y"], y) < 1e-6
    assert error(found["dx"], dx) < 1e-6


@pytest.mark.parametrize("function", ["relu6", "hardsigmoid", "hardswish"])
def test_kinks_have_the_derivatives_of_pytorch(function):
    x = np.float32([0, -0.0, 3, -3, 6, np.nextafter(np.float32(3), 0), -2.5, 7, -7])
    found, y, dx = both_ways(function, x, np.ones_like(x))
    np.testing.assert_allclose(found["y"], y, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found["dx"], dx, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_no_number_stays_none(function):
    x = np.full(20, np.nan, np.float32)
    found, _, _ = both_ways(function, x, np.ones_like(x))
    assert np.isnan(found["y"]).all()


def test_all_activation_functions_have_a_formula_or_a_unit():
    assert set(ACTIVATIONS) - set(FUNCTIONS) == {"relu", "leaky_relu", "prelu"}

"""Activation functions and their gradients on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute
from torch.nn import functional

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.elements.elementary import clamp, elementary, power
from fpgapipe.lowering.kernels.elements.formula import applied, derived
from fpgapipe.lowering.kernels.elements.functions import FUNCTIONS, activation
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.network.operators import UNARIES
from fpgapipe.network.operators.pointwise import ACTIVATIONS

SHAPES = [(1,), (2, 3, 5, 3), (70, 16), (3, 7, 9, 33), (40_000,)]


def reference(function, x, alpha=1.0):
    if not isinstance(function, str):
        return function(x)
    if function in UNARIES:
        return getattr(torch, function)(x)
    if function == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if function == "elu":
        return functional.elu(x, alpha)
    return getattr(functional, function)(x)


def both_ways(function, x, dy, element_format=FP32, alpha=1.0, formula=None):
    """Result and gradient of the core and, in FP64, of PyTorch, for the same x and kept values.

    A function is a name, or one of PyTorch that goes with the formula.
    """
    formula = formula or (
        elementary(function) if function in UNARIES else activation(function, alpha)
    )
    shape = x.shape
    names = ("x", "y", "dy", "dx")
    tensors = [Tensor(name, shape, element_format) for name in names]
    by_name = dict(zip(names, tensors, strict=True))
    kernels = [
        applied("f", formula, by_name["x"], by_name["y"], REGION),
        derived("g", formula, by_name["dy"], by_name["x"], by_name["dx"], REGION),
    ]
    found = execute(kernels, tensors, {"x": x, "dy": dy})
    leaf = torch.tensor(found["x"].astype(np.float64), requires_grad=True)
    result = reference(function, leaf, alpha)
    result.backward(torch.tensor(found["dy"].astype(np.float64)))
    return found, result.detach().numpy(), leaf.grad.numpy()


def within(function, x):
    """Arguments of which the function is defined, and whose results have no 0 beside them."""
    return np.abs(x) + 0.01 if function in ("log", "sqrt", "rsqrt") else x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", [*FUNCTIONS, *UNARIES])
def test_function_and_gradient(function, shape):
    found, y, dx = both_ways(function, within(function, 3 * drawn(shape)), drawn(shape, 1))
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


@pytest.mark.parametrize("exponent", [3, 1, -2, 7, 0.5, 1.5, -0.25, 0.75, -1.75, 8, -8])
def test_powers(exponent):
    """Powers of negative numbers are right as well, if the exponent is whole."""
    shape = (50, 9)
    x = drawn(shape)
    x = 0.1 + np.abs(x) if exponent % 1 else np.copysign(0.1 + np.abs(x), x)
    formula = power(exponent)
    found, y, dx = both_ways(lambda x: x**exponent, x, drawn(shape, 1), formula=formula)
    for name, expected in (("y", y), ("dx", dx)):
        np.testing.assert_allclose(found[name], expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("exponent", [0.3, 9, float("nan"), float("inf")])
def test_other_powers_are_refused(exponent):
    with pytest.raises(NotImplementedError, match="a multiple of 1/4 from -8 to 8, not"):
        power(exponent)


@pytest.mark.parametrize(
    ("bounds", "strict"),
    [
        *(
            (bounds, strict)
            for bounds in ((-1, 2.5), (None, 0.5), (0.25, None), (None, None))
            for strict in (False, True)
        ),
        ((1, 1), False),
    ],
)
def test_bounds(bounds, strict):
    """A gradient stops at a bound if it is strict, as that of hardtanh, and behind it otherwise."""
    low, high = bounds
    x = np.float32([*np.linspace(-4, 4, 33), -0.0])

    def expected(x):
        if bounds == (None, None):
            return x * 1
        if strict:
            ends = [sign * np.inf if b is None else b for b, sign in ((low, -1), (high, 1))]
            return functional.hardtanh(x, *ends)
        return x.clamp(low, high)

    formula = clamp(low, high, strict=strict)
    found, y, dx = both_ways(expected, x, 1 + np.arange(x.size), formula=formula)
    np.testing.assert_array_equal(found["y"], y)
    np.testing.assert_array_equal(found["dx"], dx)


def test_small_results_of_softplus_are_exact_as_well():
    x = np.linspace(-80, 30, 2_001).astype(np.float32)
    found, y, dx = both_ways("softplus", x, np.ones_like(x))
    np.testing.assert_allclose(found["y"], y, rtol=1e-6)
    np.testing.assert_allclose(found["dx"], dx, rtol=1e-6)


@pytest.mark.parametrize("function", [*FUNCTIONS, *UNARIES])
def test_features_in_bf16(function):
    x = within(function, drawn((300, 7)) + (2 if function == "reciprocal" else 0))
    found, y, dx = both_ways(function, x, drawn((300, 7), 1), BF16)
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


@pytest.mark.parametrize("function", [*FUNCTIONS, *UNARIES])
def test_what_is_no_number_stays_none(function):
    x = np.full(20, np.nan, np.float32)
    found, _, _ = both_ways(function, x, np.ones_like(x))
    assert np.isnan(found["y"]).all()


def test_all_activation_functions_have_a_formula_or_a_unit():
    assert set(ACTIVATIONS) - set(FUNCTIONS) == {"relu", "leaky_relu", "prelu"}

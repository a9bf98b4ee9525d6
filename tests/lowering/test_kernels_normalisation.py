"""Batch normalisation on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, Region, drawn, error, execute, same_bits

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.normalisation import BatchNorm, backward, forward, infer
from fpgapipe.lowering.tiling.kernel import Tensor

SHAPES = [
    (4, 9, 11, 20),
    (3, 2, 2, 1),
    (2, 5, 3, 3),
    (8, 6, 5, 17),
    (7, 33),
    (5, 4, 4, 600),
    (6, 20, 20, 64),
]


def layer(shape, element_format=FP32, **settings):
    """A normalisation, and all its tensors by name."""
    channels = shape[-1:]
    maps = {name: Tensor(name, shape, element_format) for name in ("x", "y", "r", "dy", "dx", "dr")}
    numbers = {
        name: Tensor(name, channels) for name in ("gamma", "beta", "mean", "var", "dgamma", "dbeta")
    }
    norm = BatchNorm(
        "bn", maps["x"], *(numbers[name] for name in ("gamma", "beta", "mean", "var")), **settings
    )
    return norm, maps | numbers | {tensor.name: tensor for tensor in norm.kept}


def values_for(shape, offset=1.0):
    channels = shape[-1:]
    return {
        "x": drawn(shape, 0, 2, offset),
        "r": drawn(shape, 1),
        "dy": drawn(shape, 2, 1, 0.5),
        "gamma": drawn(channels, 3, 1, 1),
        "beta": drawn(channels, 4),
        "mean": drawn(channels, 5),
        "var": np.abs(drawn(channels, 6)) + 0.5,
    }


def train(shape, values, region=REGION, *, fused, element_format=FP32, **settings):
    norm, tensors = layer(shape, element_format, **settings)
    kernels = forward(
        norm, tensors["y"], region, residual=tensors["r"] if fused else None, relu=fused
    )
    kernels += backward(
        norm,
        tensors["dy"],
        tensors["dx"],
        (tensors["dgamma"], tensors["dbeta"]),
        region,
        activated=tensors["y"] if fused else None,
        masked=tensors["dr"] if fused else None,
    )
    return execute(kernels, list(tensors.values()), values, checked=np.prod(shape) < 5000)


def reference(shape, values, *, fused, training=True, epsilon=1e-5, momentum=0.1, y=None):
    """Results and gradients of PyTorch, in FP64; `y` decides which elements are above zero."""
    channels = shape[-1]
    module = torch.nn.BatchNorm1d(channels, eps=epsilon, momentum=momentum, dtype=torch.float64)
    module.weight.data = torch.tensor(values["gamma"], dtype=torch.float64)
    module.bias.data = torch.tensor(values["beta"], dtype=torch.float64)
    module.running_mean[:] = torch.tensor(values["mean"])
    module.running_var[:] = torch.tensor(values["var"])
    module.train(training)
    flat = {
        name: torch.tensor(values[name].reshape(-1, channels), dtype=torch.float64)
        for name in ("x", "r", "dy")
    }
    x, r = flat["x"].requires_grad_(), flat["r"].requires_grad_()
    result = module(x)
    if fused:
        above = torch.tensor(y.reshape(-1, channels) > 0)
        result = torch.where(above, result + r, 0)
    found = {"y": result}
    if training:
        result.backward(flat["dy"])
        found |= {"dx": x.grad, "dgamma": module.weight.grad, "dbeta": module.bias.grad}
        if fused:
            found["dr"] = r.grad
    found |= {"mean": module.running_mean, "var": module.running_var}
    return {
        name: each.detach().numpy().reshape(shape if each.ndim > 1 else -1)
        for name, each in found.items()
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_training(shape, fused):
    values = values_for(shape)
    found = train(shape, values, fused=fused)
    expected = reference(shape, values, fused=fused, y=found["y"])
    for name, each in expected.items():
        assert error(found[name], each) < 1e-6, name
    if fused:
        # Zeros are where the sum is negative, or so near zero that rounding decides.
        exact = reference(shape, values, fused=True, y=np.ones(shape))["y"]
        wrong = (found["y"] > 0) != (exact > 0)
        assert np.abs(exact[wrong]).max(initial=0) < 1e-6
        assert not np.signbit(found["y"]).any()


@pytest.mark.parametrize("fused", [False, True])
def test_training_in_bf16(fused):
    shape = (4, 9, 11, 20)
    values = values_for(shape)
    found = train(shape, values, fused=fused, element_format=BF16)
    values |= {name: found[name] for name in ("x", "r", "dy")}
    expected = reference(shape, values, fused=fused, y=found["y"])
    for name, each in expected.items():
        rounded = name in ("y", "dx", "dr")
        assert error(found[name], each) < (2**-8 if rounded else 1e-6), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_inference(shape, fused):
    norm, tensors = layer(shape)
    values = values_for(shape)
    kernels = infer(
        norm, tensors["y"], REGION, residual=tensors["r"] if fused else None, relu=fused
    )
    found = execute(kernels, list(tensors.values()), values, checked=np.prod(shape) < 5000)
    expected = reference(shape, values, fused=fused, training=False, y=found["y"])
    assert error(found["y"], expected["y"]) < 1e-6
    assert same_bits(found["mean"], values["mean"])
    assert same_bits(found["var"], values["var"])


@pytest.mark.parametrize("value", [0.0, 3.0, -1e4])
def test_constant_channels(value):
    """Zero variance: the result is beta, and no gradient is infinite."""
    shape = (4, 4, 4, 18)
    values = values_for(shape)
    values["x"][..., ::2] = value
    found = train(shape, values, fused=False)
    expected = reference(shape, values, fused=False)
    assert error(found["y"], expected["y"]) < 1e-6
    assert same_bits(found["y"][..., ::2], np.broadcast_to(values["beta"][::2], (4, 4, 4, 9)))
    assert error(found["var"], expected["var"]) < 1e-6
    np.testing.assert_array_equal(found["dgamma"][::2], 0)
    assert error(found["dx"], expected["dx"]) < 1e-6


def test_one_position():
    """PyTorch refuses it; here the result is beta, and the gradient of the input is zero."""
    shape = (1, 1, 1, 5)
    values = values_for(shape)
    found = train(shape, values, fused=False)
    assert same_bits(found["y"][0, 0, 0], values["beta"])
    assert same_bits(found["dbeta"], values["dy"][0, 0, 0])
    np.testing.assert_array_equal(found["dx"], 0)
    np.testing.assert_array_equal(found["dgamma"], 0)
    assert error(found["var"], values["var"] * 0.9) < 1e-6


def test_a_large_mean_costs_no_precision():
    shape = (4, 9, 11, 20)
    values = values_for(shape, offset=1000.0)
    found = train(shape, values, fused=False)
    expected = reference(shape, values, fused=False)
    # The inputs' own spacing is 6e-5 there, and the mean's rounding moves all results alike.
    assert error(found["y"], expected["y"]) < 1e-4
    assert error(found["var"], expected["var"]) < 1e-6


def test_epsilon_and_momentum():
    shape = (6, 33)
    values = values_for(shape)
    found = train(shape, values, fused=False, epsilon=0.1, momentum=0.01)
    expected = reference(shape, values, fused=False, epsilon=0.1, momentum=0.01)
    for name, each in expected.items():
        assert error(found[name], each) < 1e-6, name


def test_bits_do_not_depend_on_the_region():
    shape = (6, 20, 20, 33)
    values = values_for(shape)
    large = train(shape, values, fused=True)
    small = train(shape, values, Region(0, 700 << 10), fused=True)
    for name in ("y", "dx", "dr", "dgamma", "dbeta", "mean", "var"):
        assert same_bits(small[name], large[name]), name


@pytest.mark.parametrize("choose", [None, min, max], ids=str)
@pytest.mark.parametrize("shape", [(6, 3300), (3, 2, 2045)], ids=str)
def test_channels_that_do_not_fit_on_chip(shape, choose):
    """Running averages and factors are those of a kernel that has room for all channels."""
    values = values_for(shape)
    whole = train(shape, values, fused=True)
    norm, tensors = layer(shape)
    region = Region(0, 64 << 10)
    kernels = forward(norm, tensors["y"], region, residual=tensors["r"], relu=True)
    assert any(piece.restarts for kernel in kernels for piece in kernel.pieces)
    gradients = (tensors["dgamma"], tensors["dbeta"])
    kernels += backward(
        norm, tensors["dy"], tensors["dx"], gradients, region,
        activated=tensors["y"], masked=tensors["dr"],
    )  # fmt: skip
    found = execute(kernels, list(tensors.values()), values, choose=choose)
    for name in ("y", "dx", "dr", "dgamma", "dbeta", "mean", "var"):
        assert same_bits(found[name], whole[name]), name
    small = Region(0, 24 << 10)
    inferred = [infer(norm, tensors["y"], each) for each in (small, REGION)]
    assert any(piece.restarts for piece in inferred[0][0].pieces)
    one, other = (execute(each, list(tensors.values()), values)["y"] for each in inferred)
    assert same_bits(one, other)

"""Bias, activation, residual sums and dropout on the model of a core."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, Region, drawn, error, execute, same_bits, vectors_of

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.activation import (
    activate,
    activation_gradient,
    add,
    add_bias,
    bias_gradient,
)
from fpgapipe.lowering.kernels.dropout import drop
from fpgapipe.lowering.tiling.draw import Draw
from fpgapipe.lowering.tiling.kernel import Tensor

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 3), (1, 4, 4, 17), (3, 7, 9, 33), (70, 16), (1000, 40), (5, 2048)]
SPECIAL = np.float32([0.0, -0.0, 1, -1, 1e-30, -1e-30, np.inf, -np.inf, np.nan, 3, -3, 1e-44])


def special(shape):
    return np.random.default_rng(0).choice(SPECIAL, shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_bias_is_exact(shape, relu):
    tensors = [Tensor("z", shape), Tensor("b", shape[-1:]), Tensor("y", shape)]
    kernel = add_bias("bias", *tensors, REGION, relu=relu)
    values = {"z": drawn(shape), "b": drawn(shape[-1:], 1)}
    found = execute([kernel], tensors, values)["y"]
    expected = values["z"] + values["b"]
    assert same_bits(found, np.maximum(expected, 0) if relu else expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("element_format", [BF16, FP32])
def test_bias_gradient(shape, element_format):
    tensors = [Tensor("dy", shape, element_format), Tensor("db", shape[-1:])]
    found = execute([bias_gradient("db", *tensors, REGION)], tensors, {"dy": drawn(shape)})
    assert error(found["db"], found["dy"].astype(float).reshape(-1, shape[-1]).sum(axis=0)) < 1e-6


def test_bias_gradient_of_many_positions():
    """The memory that a sum takes on chip does not grow with the number of pieces."""
    tensors = [Tensor("dy", (60_000, 64), BF16), Tensor("db", (64,))]
    kernel = bias_gradient("db", *tensors, Region(0, 90 << 10))
    assert len(kernel.pieces) == 235
    dy = drawn((60_000, 64), offset=1)
    found = execute([kernel], tensors, {"dy": dy}, checked=False)
    assert error(found["db"], found["dy"].astype(float).sum(axis=0)) < 1e-6


@pytest.mark.parametrize("shape", [(5, 3301), (1, 9999), (7, 4096), (20, 3001)], ids=str)
@pytest.mark.parametrize("element_format", [BF16, FP32])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("choose", [None, min, max], ids=str)
def test_channels_that_do_not_fit_on_chip(shape, element_format, lanes, choose):
    """A kernel goes over blocks of channels, whatever its engines do first."""
    z, y = (Tensor(name, shape, element_format) for name in ("z", "y"))
    bias, total, summed = (Tensor(name, shape[-1:]) for name in ("b", "total", "summed"))
    tensors = [z, y, bias, total, summed]

    def kernels(region):
        return [
            add_bias("bias", z, bias, y, region, relu=True),
            bias_gradient("total", y, total, region),
            activation_gradient("dz", y, y, z, region, slope=0.5, db=summed),
        ]

    values = {"z": drawn(shape), "b": drawn(shape[-1:], 1)}
    small = kernels(Region(0, 48 << 10, lanes=lanes))
    assert sum(piece.restarts for piece in small[1].pieces) >= 2
    found = execute(small, tensors, values, choose=choose)
    whole = execute(kernels(REGION), tensors, values)
    np.testing.assert_array_equal(found["y"], whole["y"])
    np.testing.assert_array_equal(found["z"], whole["z"])
    for name in ("total", "summed"):
        assert error(found[name], found["y"].astype(float).sum(axis=0)) < 1e-6
        if shape[0] <= 8:  # the sums have one piece, and so one order
            assert same_bits(found[name], whole[name])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("element_format", [BF16, FP32])
@pytest.mark.parametrize("slope", [0, 0.25])
def test_activation_is_exact_both_ways(shape, element_format, slope):
    """A slope that is a power of two rounds nothing."""
    tensors = [Tensor(name, shape, element_format) for name in ("x", "y", "dy", "dx")]
    x, y, dy, dx = tensors
    kernels = [
        activate("relu", x, y, REGION, slope=slope),
        activation_gradient("relu.dx", dy, y, dx, REGION, slope=slope),
    ]
    found = execute(kernels, tensors, {"x": drawn(shape), "dy": drawn(shape, 1)})
    kept = torch.tensor(found["x"], requires_grad=True)
    result = torch.nn.functional.leaky_relu(kept, slope) if slope else torch.relu(kept)
    result.backward(torch.tensor(found["dy"]))
    assert same_bits(found["y"] + 0.0, result.detach().numpy() + 0.0)
    np.testing.assert_array_equal(found["dx"], kept.grad.numpy())


@pytest.mark.parametrize("slope", [0, 0.5])
def test_activation_of_special_values(slope):
    tensors = [Tensor("x", (300,)), Tensor("y", (300,))]
    x = special(300)
    found = execute([activate("relu", *tensors, REGION, slope=slope)], tensors, {"x": x})["y"]
    # The core has no subnormal numbers.
    x[np.abs(x) < 1e-38] *= 0
    x = torch.tensor(x)
    result = torch.nn.functional.leaky_relu(x, slope) if slope else torch.relu(x)
    np.testing.assert_array_equal(found, result.numpy())
    if not slope:
        assert not np.signbit(found[~np.isnan(found)]).any()


@pytest.mark.parametrize("slope", [0, 0.1])
@pytest.mark.parametrize("shape", [(1, 1), (30, 3), (700, 33)], ids=str)
def test_activation_gradient_with_bias(shape, slope):
    tensors = [Tensor(name, shape) for name in ("dy", "y", "dx")] + [Tensor("db", shape[1:])]
    kernel = activation_gradient("dx", *tensors[:3], REGION, slope=slope, db=tensors[3])
    values = {"dy": drawn(shape), "y": drawn(shape, 1)}
    found = execute([kernel], tensors, values)
    expected = np.where(values["y"] > 0, values["dy"], np.float32(slope) * values["dy"])
    np.testing.assert_array_equal(found["dx"], expected)
    assert error(found["db"], expected.astype(float).sum(axis=0)) < 1e-6


@pytest.mark.parametrize("length", [1, 17, 1024, 40_001])
@pytest.mark.parametrize("relu", [False, True])
def test_sums_are_exact(length, relu):
    tensors = [Tensor("a", (length,)), Tensor("b", (length,), BF16), Tensor("y", (length,))]
    found = execute(
        [add("add", *tensors, REGION, relu=relu)],
        tensors,
        {"a": drawn(length), "b": drawn(length, 1)},
    )
    expected = found["a"] + found["b"]
    assert same_bits(found["y"], np.maximum(expected, 0) if relu else expected)


def run_dropout(shape, rate, seed=(7, 1), stream=3, region=REGION):
    """Kept elements of ones, and of a gradient, with their values."""
    tensors = [Tensor(name, shape) for name in ("x", "y", "dy", "dx")]
    x, y, dy, dx = tensors
    draw = Draw(rate, stream, key=4)
    kernels = [drop("drop", x, y, region, draw), drop("drop.dx", dy, dx, region, draw)]
    values = {"x": np.ones(shape), "dy": drawn(shape)}
    found = execute(kernels, tensors, values, {4: seed[0], 5: seed[1]}, checked=False)
    return found["y"], found["dx"], values["dy"]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_same_elements_both_ways(rate):
    y, dx, dy = run_dropout((300, 401), rate)
    kept = y != 0
    number = kept.size
    deviation = np.sqrt(rate * (1 - rate) / number)
    assert abs(kept.mean() - (1 - rate)) < 4 * deviation + 1e-5
    # Neighbours know nothing of each other.
    for axis in (0, 1):
        both = np.roll(kept, 1, axis) & kept
        assert abs(both.mean() - (1 - rate) ** 2) < 5 * deviation
    scale = np.float32(65536 / round((1 - rate) * 65536))
    assert set(np.unique(y)) == {np.float32(0), scale}
    np.testing.assert_array_equal(dx, np.where(kept, dy * scale, 0))


def test_dropout_has_other_elements_by_seed_step_and_stream():
    shape = (100, 100)
    masks = [
        run_dropout(shape, 0.5, seed, stream)[0] != 0
        for seed, stream in (((7, 1), 3), ((7, 2), 3), ((8, 1), 3), ((7, 1), 4), ((7, 1), 4095))
    ]
    for index, mask in enumerate(masks):
        for other in masks[:index]:
            assert abs((mask == other).mean() - 0.5) < 0.03


def test_dropout_does_not_depend_on_the_region():
    small = Region(1 << 16, 40 << 10)
    assert same_bits(run_dropout((97, 401), 0.3)[0], run_dropout((97, 401), 0.3, region=small)[0])


@pytest.mark.parametrize("rate", [0, 1])
def test_dropout_refuses(rate):
    with pytest.raises(
        ValueError, match=rf"^dropout rate must be above 0 and below 1, not {rate}$"
    ):
        drop("drop", *[Tensor("x", (1,))] * 2, REGION, Draw(rate, stream=0, key=0))


def test_one_pass():
    tensors = [Tensor("x", (8192,)), Tensor("y", (8192,))]
    assert vectors_of([activate("relu", *tensors, REGION)], tensors) == (512, 1)

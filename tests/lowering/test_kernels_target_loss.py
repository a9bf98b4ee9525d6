"""Losses of targets on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute, same_bits

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.target_loss import binary_cross_entropy, mean_squared_error
from fpgapipe.lowering.tiling.kernel import Region, Tensor

LOSSES = {
    "mse": (mean_squared_error, torch.nn.functional.mse_loss),
    "bce": (binary_cross_entropy, torch.nn.functional.binary_cross_entropy_with_logits),
}


def run(kind, x, target, region=REGION, scale=None, element=FP32):
    shape = x.shape
    tensors = [
        Tensor("x", shape, element),
        Tensor("t", shape),
        Tensor("loss", (1,)),
        Tensor("g", shape),
    ]
    kernel = LOSSES[kind][0]("loss", *tensors[:3], region, gradient=tensors[3], scale=scale)
    found = execute([kernel], tensors, {"x": x, "t": target})
    return float(found["loss"][0]), found["g"], found["x"]


def reference(kind, x, target, dtype=torch.float64):
    value = torch.tensor(x, dtype=dtype, requires_grad=True)
    loss = LOSSES[kind][1](value, torch.tensor(target, dtype=dtype))
    loss.backward()
    return loss.item(), value.grad.numpy()


def targets(kind, shape):
    found = drawn(shape, 1)
    return found if kind == "mse" else np.float32(1 / (1 + np.exp(-3 * found)))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 16), (7, 33), (64, 64), (3, 4099)])
def test_loss_and_gradient(kind, shape):
    x, target = drawn(shape, scale=3), targets(kind, shape)
    loss, gradient, _ = run(kind, x, target)
    expected, expected_gradient = reference(kind, x, target)
    assert abs(loss - expected) <= 1e-6 * max(abs(expected), 1)
    assert error(gradient, expected_gradient) < 1e-6
    # The target matters, or the test would not see a kernel that does not read it.
    assert abs(loss - reference(kind, x, target[::-1] * 0)[0]) > 1e-4 * loss


@pytest.mark.parametrize("kind", LOSSES)
def test_scale(kind):
    x, target = drawn((9, 20)), targets(kind, (9, 20))
    _, gradient, _ = run(kind, x, target, scale=1.0)
    assert error(gradient, reference(kind, x, target)[1] * 180) < 1e-6


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("shape", [(3, 5), (3, 4099)])
def test_results_may_be_bf16(kind, shape):
    x, target = drawn(shape, scale=3), targets(kind, shape)
    loss, gradient, rounded = run(kind, x, target, element=BF16)
    expected, expected_gradient = reference(kind, rounded, target)
    assert abs(loss - expected) <= 1e-6 * max(abs(expected), 1)
    assert error(gradient, expected_gradient) < 1e-6


def test_large_logits():
    """Where exponentials would overflow, and at 0."""
    x = np.float32([[0, -0.0, 100, -100, 1e4, -1e4, 3e38, -3e38]])
    target = np.float32([[0.5, 1, 1, 0, 0, 1, 1, 0]])
    loss, gradient, _ = run("bce", x, target)
    expected, expected_gradient = reference("bce", x, target)
    assert abs(loss - expected) < 1e-6 * expected
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-8)


@pytest.mark.parametrize("kind", LOSSES)
def test_bits_do_not_depend_on_the_region(kind):
    x, target = drawn((5, 3001)), targets(kind, (5, 3001))
    large = run(kind, x, target)
    other = run(kind, x, target, Region(1 << 16, 140 << 10))
    assert other[0] == large[0]
    assert same_bits(other[1], large[1])
    small = run(kind, x, target, Region(1 << 16, 16 << 10))  # smaller pieces: another order
    assert small[0] == pytest.approx(large[0], rel=1e-6)
    assert same_bits(small[1], large[1])


def test_other_tensors_are_refused():
    tensors = [Tensor("x", (4,)), Tensor("t", (4,)), Tensor("loss", (1,))]
    with pytest.raises(ValueError, match=r"^loss tensor g must be FP32, not BF16$"):
        mean_squared_error("loss", *tensors, REGION, gradient=Tensor("g", (4,), BF16))
    with pytest.raises(ValueError, match=r"^loss tensor g must have 4 elements, not 5$"):
        binary_cross_entropy("loss", *tensors, REGION, gradient=Tensor("g", (5,)))

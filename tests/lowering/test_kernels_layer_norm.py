"""Layer normalisation and the gradients of softmax, on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute, same_bits

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.dropout import drop_factors
from fpgapipe.lowering.kernels.layer_norm import (
    layer_norm,
    layer_norm_gradient,
    parameter_gradient,
)
from fpgapipe.lowering.kernels.long_norm import long_layer_norm, long_layer_norm_gradient
from fpgapipe.lowering.kernels.softmax import softmax, softmax_gradient
from fpgapipe.lowering.tiling.draw import Draw
from fpgapipe.lowering.tiling.kernel import Region, Tensor

SHAPES = [(1, 1), (3, 10), (70, 17), (2, 3, 45), (130, 16), (9, 1100), (40, 768), (1000, 5)]


def normalised(shape, region, formats, *, scale, shift, is_long=False, is_centred=True):
    """All passes, and the tensors of PyTorch."""
    width, number = shape[-1], int(np.prod(shape[:-1]))
    x, dy, y, n, dx = (
        Tensor(name, shape, each)
        for name, each in zip(
            ("x", "dy", "y", "n", "dx"), (*formats, formats[1], FP32, formats[1]), strict=True
        )
    )
    mean, deviation = Tensor("mean", (number,)), Tensor("deviation", (number,))
    gamma, beta = (Tensor(name, (width,)) for name in ("gamma", "beta"))
    learned = {"gamma": gamma if scale else None, "beta": beta if shift else None}
    totals = [Tensor(name, (width,)) for name in ("dgamma", "dbeta")]
    tensors = [x, dy, y, n, dx, mean, deviation, gamma, beta, *totals]
    number_of_row = Tensor("number", (number,))
    own_mean = mean if is_centred else None
    matrices = (x, dy, n, dx, own_mean, deviation)
    if is_long:
        work = tuple(Tensor(name, shape) for name in ("work", "scaled"))
        tensors += [*work, number_of_row]
        kernels = [
            *long_layer_norm(
                "forward", x, y, own_mean, deviation, work[0], region, epsilon=1e-3, **learned
            ),
            *long_layer_norm_gradient(
                "backward", *matrices, work, number_of_row, region, gamma=learned["gamma"]
            ),
        ]
    else:
        kernels = [
            layer_norm("forward", x, y, own_mean, deviation, region, epsilon=1e-3, **learned),
            layer_norm_gradient("backward", *matrices, region, gamma=learned["gamma"]),
        ]
    kernels += [
        parameter_gradient("dgamma", dy, n, totals[0], region),
        parameter_gradient("dbeta", dy, None, totals[1], region),
    ]
    given = {
        "x": drawn(shape, scale=2, offset=1),
        "dy": drawn(shape, 1),
        "gamma": drawn((width,), 2),
        "beta": drawn((width,), 3),
    }
    found = execute(kernels, tensors, given)
    leaf, own, moved = (
        torch.tensor(found[name].astype(np.float64)).requires_grad_()
        for name in ("x", "gamma", "beta")
    )
    if is_centred:
        result = torch.nn.functional.layer_norm(
            leaf, (width,), own if scale else None, moved if shift else None, 1e-3
        )
    else:
        result = torch.nn.functional.rms_norm(leaf, (width,), own if scale else None, 1e-3)
        result = result + moved if shift else result
    result.backward(torch.tensor(found["dy"].astype(np.float64)))
    return found, result.detach().numpy(), leaf.grad.numpy(), own.grad, moved.grad


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16), (BF16, FP32)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape, formats):
    found, y, dx, dgamma, dbeta = normalised(shape, REGION, formats, scale=True, shift=True)
    near = 1e-6 if formats[1] is FP32 else 4e-3
    assert error(found["y"], y) < near
    if shape[-1] > 1:
        assert error(found["dx"], dx) < near
        assert error(found["dgamma"], dgamma.numpy()) < 1e-6
    assert error(found["dbeta"], dbeta.numpy()) < 1e-6


@pytest.mark.parametrize(("scale", "shift"), [(False, False), (True, False), (False, True)])
def test_layer_norm_without_scale_or_shift(scale, shift):
    found, y, dx, _, _ = normalised((33, 40), REGION, (FP32, FP32), scale=scale, shift=shift)
    assert error(found["y"], y) < 1e-6
    assert error(found["dx"], dx) < 1e-6


@pytest.mark.parametrize("shape", [(1, 7), (3, 10), (5, 2049), (2, 20_001)], ids=str)
@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16)], ids=str)
@pytest.mark.parametrize(
    ("scale", "shift"), [(True, True), (False, False), (True, False), (False, True)]
)
def test_layer_norm_of_long_rows(shape, formats, scale, shift):
    """The kernels go over rows of any length, by pieces."""
    found, y, dx, dgamma, dbeta = normalised(
        shape, Region(0, 20 << 10), formats, scale=scale, shift=shift, is_long=True
    )
    near = 1e-6 if formats[1] is FP32 else 5e-3
    assert error(found["y"], y) < near
    if shape[-1] > 1:
        assert error(found["dx"], dx) < near
        if scale:
            assert error(found["dgamma"], dgamma.numpy()) < 1e-6
    if shift:
        assert error(found["dbeta"], dbeta.numpy()) < 1e-6


@pytest.mark.parametrize("shape", [(1, 7), (70, 17), (2, 3, 45), (9, 1100), (40, 768)], ids=str)
@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16), (BF16, FP32)], ids=str)
@pytest.mark.parametrize(("scale", "shift"), [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("is_long", [False, True])
def test_rms_norm(shape, formats, scale, shift, is_long):
    """No mean is subtracted."""
    if is_long:
        shape = (int(np.prod(shape[:-1])), shape[-1])
    found, y, dx, dgamma, dbeta = normalised(
        shape, REGION, formats, scale=scale, shift=shift, is_long=is_long, is_centred=False
    )
    near = 1e-6 if formats[1] is FP32 else 5e-3
    assert error(found["y"], y) < near
    assert error(found["dx"], dx) < near
    if scale:
        assert error(found["dgamma"], dgamma.numpy()) < 1e-6
    if shift:
        assert error(found["dbeta"], dbeta.numpy()) < 1e-6


def test_layer_norm_does_not_depend_on_the_region():
    results = [
        normalised((300, 33), Region(1 << 16, size), (FP32, FP32), scale=True, shift=True)[0]
        for size in (1 << 20, 40 << 10)
    ]
    for name in ("y", "n", "dx"):
        assert same_bits(results[0][name], results[1][name])


def softmaxes(shape, formats, *, log=False, causal=False, scale=1, draw=None, region=REGION):
    x, y, dy, dx = (
        Tensor(name, shape, each)
        for name, each in zip(("x", "y", "dy", "dx"), formats * 2, strict=True)
    )
    settings = {"log": log, "causal": causal, "scale": scale, "draw": draw}
    tensors = [x, y, dy, dx]
    dropped = None if draw is None else Tensor("dropped", shape, y.format)
    kernels = [
        softmax("softmax", x, y, region, dropped=dropped, **settings),
        softmax_gradient("gradient", dy, y, dx, region, **settings),
    ]
    given = {"x": drawn(shape, scale=3, offset=10), "dy": drawn(shape, 1)}
    if draw is None:
        return execute(kernels, tensors, given)
    # Random numbers are not those of the program's check of kernels.
    registers = {draw.key: 5, draw.key + 1: 6}
    return execute(kernels, [*tensors, dropped], given, registers, checked=False)


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16), (FP32, BF16)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", [0, 0.2])
@pytest.mark.parametrize("shape", [(16, 16), (2, 3, 48), (3, 70, 96), (2, 9, 1104), (1, 130, 160)])
def test_softmax_with_scale_and_dropout(shape, causal, rate, formats):
    """Scale, softmax and dropout in one kernel, both ways, against PyTorch."""
    draw, scale = (Draw(rate, 3, 4, first=7) if rate else None), 0.25
    found = softmaxes(shape, formats, causal=causal, scale=scale, draw=draw)
    x = torch.tensor(found["x"].astype(np.float64), requires_grad=True)
    future = torch.triu(torch.ones(shape[-2:], dtype=torch.bool), 1)
    seen = (x * scale).masked_fill(future, -torch.inf) if causal else x * scale
    shares = torch.softmax(seen, -1)
    factors = np.ones(shape)
    if rate:
        factors = drop_factors(shares.numel(), rate, 3, (5, 6), first=7).reshape(shape)
        assert 0.05 < (factors == 0).mean() < 0.5
    y = shares * torch.tensor(factors.astype(np.float64))
    y.backward(torch.tensor(found["dy"].astype(np.float64)))
    near = 1e-6 if formats[1] is FP32 else 5e-3
    assert error(found["dropped" if rate else "y"], y.detach().numpy()) < near
    assert error(found["dx"], x.grad.numpy()) < 3 * near
    if causal:
        for name in ("dx", "dropped" if rate else "y"):
            assert not found[name][..., future.numpy()].any()


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_softmax_refuses_scales(scale):
    x, y = Tensor("x", (4, 4)), Tensor("y", (4, 4))
    with pytest.raises(ValueError, match=r"^the scale of a softmax must be above 0 and finite"):
        softmax("softmax", x, y, REGION, scale=scale)


def test_softmax_with_dropout_refuses_parts_of_vectors():
    x, y = Tensor("x", (4, 20)), Tensor("y", (4, 20))
    with pytest.raises(ValueError, match=r"have rows of a multiple of 16 elements, not 20$"):
        softmax("softmax", x, y, REGION, dropped=y, draw=Draw(0.1, 0, 0))


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16)], ids=str)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_of_softmax(shape, log, formats):
    found = softmaxes(shape, formats, log=log)
    y, dy = found["y"].astype(np.float64), found["dy"].astype(np.float64)
    total = (dy if log else dy * y).sum(-1, keepdims=True)
    expected = dy - np.exp(y) * total if log else y * (dy - total)
    near = 2e-6 * np.abs(dy).max() if formats[1] is FP32 else 4e-3 * np.abs(expected).max()
    assert np.abs(found["dx"] - expected).max() <= max(near, 1e-6)


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16)], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 5), (3, 16, 16), (2, 3, 45, 45), (3, 70, 70), (2, 7, 40), (4, 2, 1100)]
)
def test_causal_softmax(shape, formats):
    found = softmaxes(shape, formats, causal=True)
    future = np.triu(np.ones(shape[-2:], bool), 1)
    x = np.where(future, -np.inf, found["x"].astype(np.float64))
    expected = torch.softmax(torch.tensor(x), -1).numpy()
    assert error(found["y"], expected) < (1e-6 if formats[1] is FP32 else 4e-3)
    assert not found["y"][..., future].any()
    assert not found["dx"][..., future].any()


def test_causal_softmax_does_not_depend_on_the_region():
    found = [
        softmaxes((3, 70, 70), (FP32, FP32), causal=True, region=Region(1 << 16, size))
        for size in (1 << 20, 20 << 10)
    ]
    for name in ("y", "dx"):
        assert same_bits(found[0][name], found[1][name])


def test_dropped_rows_do_not_depend_on_the_region():
    found = [
        softmaxes(
            (3, 70, 96), (BF16, BF16), causal=True, scale=0.3, draw=Draw(0.3, 1, 2),
            region=Region(1 << 16, size),
        )
        for size in (1 << 20, 24 << 10)
    ]  # fmt: skip
    for name in ("dropped", "dx"):
        assert same_bits(found[0][name], found[1][name])


@pytest.mark.parametrize(("shape", "log"), [((4, 3), False), ((3, 3), True)])
def test_causal_softmax_is_refused(shape, log):
    x, y = Tensor("x", shape), Tensor("y", shape)
    with pytest.raises(ValueError, match=r"must be no logarithm, and have no more rows than col"):
        softmax("softmax", x, y, REGION, log=log, causal=True)

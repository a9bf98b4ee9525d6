"""Pooling on the model of a core, against PyTorch."""

import random

import numpy as np
import pytest
import torch
from kernel_cases import REGION, SMALL_REGION, drawn, error, execute, same_bits, vectors_of

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.global_pooling import (
    global_average,
    global_average_gradient,
)
from fpgapipe.lowering.kernels.pooling import (
    Pool,
    average_pool,
    average_pool_gradient,
    max_pool,
    max_pool_gradient,
)
from fpgapipe.lowering.tiling.kernel import Region, Tensor

SHAPES = [
    pytest.param((2, 9, 11, 17), Pool((3, 3), (2, 2), (1, 1, 1, 1)), id="resnet"),
    pytest.param((2, 8, 8, 33), Pool((2, 2), (2, 2)), id="phases-as-loops"),
    pytest.param((2, 7, 9, 3), Pool((2, 2), (2, 2)), id="rows-left-over"),
    pytest.param((3, 5, 6, 1), Pool((3, 2), (1, 1), (1, 1, 1, 1)), id="overlap"),
    pytest.param((1, 11, 10, 16), Pool((2, 1), (3, 4)), id="gaps"),
    pytest.param((1, 9, 13, 5), Pool((3, 2), (2, 3), (1, 0, 1, 0)), id="uneven"),
    pytest.param((2, 1, 1, 1), Pool((1, 1), (1, 1)), id="one-element"),
    pytest.param((1, 4, 5, 20), Pool((1, 1), (2, 2)), id="one-tap"),
    pytest.param((1, 5, 70, 2), Pool((3, 3), (1, 1), (1, 1, 1, 1)), id="wide"),
    pytest.param((1, 3, 67, 2), Pool((1, 3), (1, 1), (0, 1, 0, 1)), id="prime-width"),
    pytest.param((1, 4, 134, 18), Pool((2, 3), (2, 2), (0, 1, 0, 1)), id="prime-half"),
    pytest.param((2, 15, 17, 2), Pool((15, 17), (1, 1)), id="255-taps"),
    pytest.param((1, 6, 7, 4), Pool((3, 3), (2, 2), (0, 0, 1, 0)), id="below-only"),
]


def nchw(values):
    return torch.tensor(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


def nhwc(tensor):
    return tensor.detach().numpy().transpose(0, 2, 3, 1)


def padded(x, pool, value):
    top, left, bottom, right = pool.pad
    return torch.nn.functional.pad(x, (left, right, top, bottom), value=value)


def tensors_of(shape, pool, index_format=FP32, element_format=FP32):
    n, h, w, c = shape
    out = (n, *pool.output(h, w), c)
    return (
        Tensor("x", shape, element_format),
        Tensor("y", out, element_format),
        Tensor("index", out, index_format),
        Tensor("dy", out, element_format),
        Tensor("dx", shape, element_format),
    )


def run_max(shape, pool, x, dy, region=REGION, index_format=FP32, element_format=FP32):
    tensors = tensors_of(shape, pool, index_format, element_format)
    tx, ty, ti, tdy, tdx = tensors
    kernels = [
        max_pool("pool", pool, tx, ty, region, index=ti),
        max_pool_gradient("pool.dx", pool, tdy, ti, tdx, region),
    ]
    return execute(kernels, tensors, {"x": x, "dy": dy}, checked=np.prod(shape) < 5000)


def reference_max(pool, x, dy):
    """Value, tap and gradient, of PyTorch; pads of any kind come first."""
    tx = nchw(x).requires_grad_()
    whole = padded(tx, pool, -np.inf)
    value, at = torch.nn.functional.max_pool2d(whole, pool.kernel, pool.stride, return_indices=True)
    value.backward(nchw(dy))
    rows = at // whole.shape[3] - torch.arange(value.shape[2])[:, None] * pool.stride[0]
    columns = at % whole.shape[3] - torch.arange(value.shape[3]) * pool.stride[1]
    return nhwc(value), nhwc(rows * pool.kernel[1] + columns), nhwc(tx.grad)


@pytest.mark.parametrize(("shape", "pool"), SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_max_is_exact(shape, pool, ties):
    x = drawn(shape)
    if ties:
        x = np.round(x)
    n, h, w, c = shape
    dy = drawn((n, *pool.output(h, w), c), 1)
    found = run_max(shape, pool, x, dy)
    value, tap, dx = reference_max(pool, x, dy)
    assert same_bits(found["y"], value)
    np.testing.assert_array_equal(found["index"], tap)
    assert same_bits(found["dx"], dx)


def random_pool(seed):
    """A shape and a window that has a pixel inside wherever it stands."""
    rng = random.Random(seed)
    while True:
        kernel, stride = ((rng.randint(1, 5), rng.randint(1, 5)) for _ in range(2))
        pad = tuple(rng.choice([0, 0, 1, 2]) for _ in range(4))
        columns = rng.choice([rng.randint(1, 14), rng.randint(60, 140)])
        shape = (rng.randint(1, 3), rng.randint(1, 14), columns, rng.choice([1, 3, 16, 17, 33]))
        pool = Pool(kernel, stride, pad)
        small = any(p >= k for p, k in zip(pad, kernel * 2, strict=True))
        if not small and min(pool.output(*shape[1:3])) > 0:
            return shape, pool


@pytest.mark.parametrize("seed", range(12))
def test_random_windows(seed):
    shape, pool = random_pool(seed)
    region = [REGION, SMALL_REGION][seed % 2]
    x = np.round(drawn(shape, seed), 1)
    dy = drawn((shape[0], *pool.output(*shape[1:3]), shape[3]), seed + 100)
    found = run_max(shape, pool, x, dy, region)
    value, tap, dx = reference_max(pool, x, dy)
    assert same_bits(found["y"], value)
    np.testing.assert_array_equal(found["index"], tap)
    assert same_bits(found["dx"], dx)
    uncounted = Pool(pool.kernel, pool.stride, pool.pad, (0, 0, 0, 0))
    found = run_average(shape, uncounted, x, dy, region)
    value, dx = reference_average(pool, x, dy, False)
    assert error(found["y"], value) < 1e-6
    assert error(found["dx"], dx) < 1e-6


def test_max_of_nan_infinities_and_zeros():
    shape, pool = (2, 9, 11, 17), Pool((3, 3), (2, 2), (1, 1, 1, 1))
    rng = np.random.default_rng(0)
    x = rng.choice(np.float32([0.0, -0.0, 1, -1, np.nan, np.inf, -np.inf]), shape)
    x[0, :, :, :5] = -np.inf
    dy = drawn((2, 5, 6, 17), 1)
    found = run_max(shape, pool, x, dy)
    # PyTorch's own padding: of windows of -inf alone, the first pixel inside wins.
    tx = nchw(x).requires_grad_()
    value, at = torch.nn.functional.max_pool2d(tx, 3, 2, 1, return_indices=True)
    value.backward(nchw(dy))
    assert same_bits(found["y"], nhwc(value))
    rows, columns = nhwc(at) // 11, nhwc(at) % 11
    first = np.arange(5)[:, None, None] * 2 - 1, np.arange(6)[:, None] * 2 - 1
    np.testing.assert_array_equal(found["index"], (rows - first[0]) * 3 + columns - first[1])
    assert same_bits(found["dx"], nhwc(tx.grad))


@pytest.mark.parametrize("index_format", [BF16, FP32])
def test_max_of_bf16(index_format):
    shape, pool = (2, 15, 17, 18), Pool((15, 17), (1, 1))
    x = drawn(shape)
    x.view(np.uint32)[:] &= 0xFFFF0000
    dy = drawn((2, 1, 1, 18), 1)
    dy.view(np.uint32)[:] &= 0xFFFF0000
    found = run_max(shape, pool, x, dy, index_format=index_format, element_format=BF16)
    value, tap, dx = reference_max(pool, x, dy)
    assert same_bits(found["y"], value)
    np.testing.assert_array_equal(found["index"], tap)
    assert same_bits(found["dx"], dx)


def test_max_refuses():
    x, y = Tensor("x", (1, 17, 17, 1)), Tensor("y", (1, 1, 1, 1))
    with pytest.raises(
        ValueError, match=r"^max pool window must have at most 256 pixels, not 289$"
    ):
        max_pool("pool", Pool((17, 17), (1, 1)), x, y, REGION)
    with pytest.raises(
        ValueError,
        match=r"^pooled tensor y must have shape \(1, 16, 16, 1\), not \(1, 1, 1, 1\)$",
    ):
        max_pool("pool", Pool((2, 2), (1, 1)), x, y, REGION)
    with pytest.raises(ValueError, match=r"^pool pad must be at least 0, not \(0, -1, 0, 0\)$"):
        Pool((2, 2), (1, 1), (0, -1, 0, 0))
    rule = "^pool kernel, stride and dilation must be at least 1, "
    with pytest.raises(ValueError, match=rule + r"not \(2, 2\), \(1, 0\) and \(1, 1\)$"):
        Pool((2, 2), (1, 0))


def run_average(shape, pool, x, dy, region=REGION):
    tx, ty, _, tdy, tdx = tensors = tensors_of(shape, pool)
    kernels = [
        average_pool("pool", pool, tx, ty, region),
        average_pool_gradient("pool.dx", pool, tdy, tdx, region),
    ]
    return execute(kernels, tensors, {"x": x, "dy": dy}, checked=np.prod(shape) < 5000)


def reference_average(pool, x, dy, counts_pad):
    tx = nchw(x).requires_grad_()
    total = torch.nn.functional.avg_pool2d(
        padded(tx, pool, 0.0), pool.kernel, pool.stride, divisor_override=1
    )
    ones = torch.ones_like(tx[:1, :1])
    number = torch.nn.functional.avg_pool2d(
        padded(ones, pool, float(counts_pad)), pool.kernel, pool.stride, divisor_override=1
    )
    value = total / number
    value.backward(nchw(dy))
    return nhwc(value), nhwc(tx.grad)


@pytest.mark.parametrize(("shape", "pool"), SHAPES)
@pytest.mark.parametrize("counts_pad", [False, True])
def test_average(shape, pool, counts_pad):
    pool = Pool(pool.kernel, pool.stride, pool.pad, None if counts_pad else (0, 0, 0, 0))
    n, h, w, c = shape
    x, dy = drawn(shape), drawn((n, *pool.output(h, w), c), 1)
    found = run_average(shape, pool, x, dy)
    value, dx = reference_average(pool, x, dy, counts_pad)
    assert error(found["y"], value) < 1e-6
    assert error(found["dx"], dx) < 1e-6
    # Pixels that no window holds.
    assert not found["dx"][dx == 0].view(np.uint32).any()


@pytest.mark.parametrize("include", [False, True])
def test_average_with_ceil_mode(include):
    shape = (2, 8, 9, 5)
    # Windows that begin behind the image's padding do not exist; others reach over it.
    pool = Pool((3, 3), (2, 2), (1, 1, 2, 1), (1, 1, 1, 1) if include else (0, 0, 0, 0))
    tx = nchw(drawn(shape)).requires_grad_()
    value = torch.nn.functional.avg_pool2d(tx, 3, 2, 1, ceil_mode=True, count_include_pad=include)
    dy = drawn((2, *value.shape[2:], 5), 1)
    value.backward(nchw(dy))
    found = run_average(shape, pool, drawn(shape), dy)
    assert error(found["y"], nhwc(value)) < 1e-6
    assert error(found["dx"], nhwc(tx.grad)) < 1e-6


@pytest.mark.parametrize(
    "shape",
    [(2, 7, 7, 33), (1, 1, 1, 1), (3, 5, 4, 3), (1, 70, 66, 17), (2, 1, 9, 20), (2, 67, 1, 16)],
    ids=str,
)
@pytest.mark.parametrize("region", [REGION, Region(1 << 16, 55 << 10)], ids=["large", "small"])
def test_global_average(shape, region):
    n, h, w, c = shape
    x, dy = drawn(shape, offset=1), drawn((n, c), 1)
    tensors = [Tensor("x", shape), Tensor("y", (n, c)), Tensor("dy", (n, c)), Tensor("dx", shape)]
    kernels = [
        global_average("pool", tensors[0], tensors[1], region),
        global_average_gradient("pool.dx", tensors[2], tensors[3], region),
    ]
    found = execute(kernels, tensors, {"x": x, "dy": dy})
    assert error(found["y"], x.astype(float).mean(axis=(1, 2))) < 1e-6
    share = np.broadcast_to((dy / (h * w))[:, None, None], shape)
    assert error(found["dx"], share) < 1e-6


@pytest.mark.parametrize(
    ("shape", "pool"),
    [
        pytest.param(
            (3, 20, 21, 40),
            Pool((3, 3), (2, 2), (1, 1, 1, 1), (0, 0, 0, 0)),
            marks=pytest.mark.slow,
        ),
        ((5, 12, 12, 40), Pool((2, 2), (2, 2))),
        ((1, 40, 30, 33), Pool((2, 3), (3, 2), (1, 1, 0, 1))),
    ],
    ids=str,
)
def test_bits_do_not_depend_on_the_region(shape, pool):
    n, h, w, c = shape
    x, dy = np.round(drawn(shape), 1), drawn((n, *pool.output(h, w), c), 1)
    large = run_max(shape, pool, x, dy), run_average(shape, pool, x, dy)
    tensors = tensors_of(shape, pool)
    pieces = len(max_pool("pool", pool, tensors[0], tensors[1], REGION).pieces)
    cuts = set()
    for size in (32 << 10, 48 << 10, 100 << 10):
        region = Region(1 << 16, size)
        cuts.add(len(max_pool("pool", pool, tensors[0], tensors[1], region).pieces))
        small = run_max(shape, pool, x, dy, region), run_average(shape, pool, x, dy, region)
        for before, after in zip(large, small, strict=True):
            for name in {"y", "index", "dx"} & before.keys():
                if not (name == "index" and after is small[1]):
                    assert same_bits(after[name], before[name]), name
    assert max(cuts) > pieces


def test_global_average_does_not_depend_on_the_region():
    shape = (3, 24, 25, 40)
    tensors = [Tensor("x", shape), Tensor("y", (3, 40))]
    found = [
        execute([global_average("p", *tensors, region)], tensors, {"x": drawn(shape)})["y"]
        for region in (REGION, Region(1 << 16, 40 << 10), Region(1 << 16, 20 << 10))
    ]
    assert same_bits(found[1], found[0])
    assert same_bits(found[2], found[0])


def test_programs_are_sound():
    shape, pool = (2, 40, 30, 33), Pool((3, 3), (2, 2), (1, 1, 1, 1))
    tx, ty, ti, tdy, tdx = tensors = tensors_of(shape, pool)
    kernels = [
        max_pool("pool", pool, tx, ty, SMALL_REGION, index=ti),
        max_pool_gradient("pool.dx", pool, tdy, ti, tdx, SMALL_REGION),
        average_pool("average", pool, tx, ty, SMALL_REGION),
    ]
    values = {"x": drawn(shape), "dy": drawn(ty.shape)}
    execute(kernels, tensors, values, checked=True)


def test_one_instruction_covers_a_piece():
    tensors = tensors_of((2, 16, 16, 32), Pool((2, 2), (2, 2)))
    tx, ty, ti, tdy, tdx = tensors
    pool = Pool((2, 2), (2, 2))
    forward = max_pool("pool", pool, tx, ty, REGION, index=ti)
    backward = max_pool_gradient("pool.dx", pool, tdy, ti, tdx, REGION)
    vectors = tx.elements // 16
    assert vectors_of([forward], tensors) == (2 * vectors, 2)
    assert vectors_of([backward], tensors) == (vectors, 1)

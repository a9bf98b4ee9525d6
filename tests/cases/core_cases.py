"""Layers, cores and references for the tests of the training core."""

import random
from dataclasses import replace

import numpy as np
import pytest

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.products.conv import PASSES, ConvSpec
from fpgapipe.lowering.products.conv_parts import Formats, Tiling


def reference(conv, which, operands):
    """A pass in float64, by its definition."""
    x, w, dy = (operands.get(name) for name in ("x", "w", "dy"))
    top, left, bottom, right = conv.pad
    padded = np.zeros(
        (conv.batch, conv.h + top + bottom, conv.w + left + right, conv.cin), np.float64
    )
    inner = (slice(None), slice(top, top + conv.h), slice(left, left + conv.w))
    y = np.zeros((conv.batch, conv.oh, conv.ow, conv.cout))
    dw = np.zeros((conv.cout, *conv.kernel, conv.cin))
    if which != "input":
        padded[inner] = x
    for ty in range(conv.kernel[0]):
        for tx in range(conv.kernel[1]):
            window = (
                slice(None),
                _span(ty * conv.dilation[0], conv.oh, conv.stride[0]),
                _span(tx * conv.dilation[1], conv.ow, conv.stride[1]),
            )
            if which == "forward":
                y += padded[window] @ w[:, ty, tx].T.astype(float)
            elif which == "input":
                padded[window] += dy.astype(float) @ w[:, ty, tx].astype(float)
            else:
                dw[:, ty, tx] = np.einsum("nyxo,nyxi->oi", dy.astype(float), padded[window])
    return {"forward": y, "input": padded[inner], "weight": dw}[which]


def _span(first, count, step):
    return slice(first, first + (count - 1) * step + 1, step)


def integers(program, seed, most=40):
    """Operands that MXINT8 holds exactly, so that every product and every sum is exact."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-most, most + 1, tensor.shape).astype(np.float32)
        for name, tensor in program.tensors.items()
    }


def random_conv(rng):
    """Odd shapes: kernels larger than the image, strides larger than the kernel, tails."""
    if rng.random() < 0.2:
        return ConvSpec.linear(rng.randint(1, 70), rng.randint(1, 100), rng.randint(1, 200))
    while True:
        try:
            return ConvSpec(
                cin=rng.choice([1, 3, 7, 20, 32, 33, 64, 70]),
                cout=rng.choice([1, 5, 16, 32, 40, 65]),
                kernel=(rng.randint(1, 4), rng.randint(1, 4)),
                stride=(rng.randint(1, 3), rng.randint(1, 3)),
                pad=tuple(rng.randint(0, 3) for _ in range(4)),
                h=rng.randint(1, 9),
                w=rng.randint(1, 9),
                batch=rng.choice([1, 2, 5]),
                dilation=(rng.choice([1, 1, 2]), rng.choice([1, 1, 2])),
            )
        except ValueError:
            continue


def random_case(seed):
    """A layer, a pass, a core, a cut, formats."""
    rng = random.Random(seed)
    core = CoreSpec(
        rows=rng.choice([4, 8, 16, 32]),
        cols=rng.choice([1, 3, 8, 16, 32, 64]),
        acc_depth=rng.choice([64, 256]),
        scratchpad=ScratchpadSpec(rng.choice([1, 2, 4, 8]), 1 << rng.choice([14, 15, 16])),
    )
    conv = random_conv(rng)
    which = rng.choice(PASSES)
    cut = Tiling(
        min(rng.choice([32, 64, 128]), core.acc_depth),
        rng.choice([1, 2, 5, 30]),
        rng.choice([32, 64, 1000]),
        rng.random() < 0.5,
    )
    formats = Formats(*(rng.choice([BF16, FP32]) for _ in range(3)), FP32)
    cut = replace(cut, own_window=rng.random() < 0.5)
    return conv, which, core, cut, formats


def some_of(faults, kept=1):
    """Parameters: each fault is a build of its own, so all but a few are for the full suite."""
    return [
        pytest.param(fault, marks=[pytest.mark.slow] if index >= kept else [])
        for index, fault in enumerate(faults)
    ]

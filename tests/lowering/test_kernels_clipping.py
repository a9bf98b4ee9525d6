"""Clipping by the norm of all gradients on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute, same_bits

from fpgapipe.hw.hls_models.isa.vector_op import Constant
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels import clipping
from fpgapipe.lowering.kernels.clipping import (
    clip_coefficient,
    square_sums,
    sums_of,
    total_of_sums,
)
from fpgapipe.lowering.tiling.kernel import Region, Tensor

NORM = 9


def clipped(lengths, scalars=None, region=REGION, element=FP32, scale=1.0, values=None):
    """Gradients, the factor and the norm."""
    gradients = [Tensor(f"g{i}", (length,), element) for i, length in enumerate(lengths)]
    sums, factor, norm = sums_of(len(lengths), "sums"), Tensor("c", (16,)), Tensor("norm", (16,))
    kernels = [
        *square_sums("squares", gradients, sums, region),
        clip_coefficient(
            "clip",
            sums,
            factor,
            region,
            max_norm=Constant(register=NORM),
            scale=Constant(scale),
            norm=norm,
        ),
    ]
    values = values or {tensor.name: drawn(tensor.shape, i) for i, tensor in enumerate(gradients)}
    found = execute(kernels, [*gradients, sums, factor, norm], values, scalars or {NORM: 1.0})
    return found, values


@pytest.mark.parametrize(
    "lengths", [(1,), (17, 3), (70_001, 1, 16_384, 5000), (40,) * 130], ids=len
)
@pytest.mark.parametrize("max_norm", [0.01, 1e4])
def test_clipping(lengths, max_norm):
    found, values = clipped(lengths, {NORM: max_norm}, scale=0.5)
    parameters = [torch.zeros(length, requires_grad=True) for length in lengths]
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.tensor(values[f"g{i}"]) * 0.5
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=False)
    assert error(found["norm"], np.full(16, norm.item())) < 1e-6
    for i, parameter in enumerate(parameters):
        assert error(values[f"g{i}"] * found["c"][0], parameter.grad.numpy()) < 1e-6
    assert len(set(found["c"].tolist())) == 1
    if max_norm == 1e4:
        assert found["c"][0] == 0.5


@pytest.mark.parametrize(("value", "expected"), [(np.inf, 0.0), (np.nan, np.nan), (0.0, 1.0)])
def test_clipping_of_special_values(value, expected):
    found, _ = clipped((33,), values={"g0": np.full(33, value, np.float32)})
    np.testing.assert_array_equal(found["c"], np.full(16, expected, np.float32))


def test_gradients_may_be_bf16():
    found, values = clipped((1000, 20), element=BF16)
    exact = np.sqrt(sum(np.square(each.astype(np.float64)).sum() for each in values.values()))
    # What BF16 rounds is drawn in FP32: 2**-9 of each number at most.
    assert error(found["norm"], np.full(16, exact)) < 2**-8


@pytest.mark.parametrize("cut", [0, 1, 64, 99])
def test_a_total_goes_on_where_another_stopped(cut):
    """The bits are those of one device that has all gradients."""
    lengths = [(37 * number) % 300 + 1 for number in range(100)]
    whole, values = clipped(lengths)
    gradients = [Tensor(f"g{i}", (length,)) for i, length in enumerate(lengths)]
    kernels, tensors = [], [*gradients, Tensor("total", (16,)), Tensor("c", (16,))]
    first = sums_of(max(cut, 1), "first")  # a device without gradients has a total of zero
    kernels += square_sums("squares", gradients[:cut], first, REGION)
    kernels.append(total_of_sums("total", first, tensors[-2], REGION))
    found = execute(kernels, [*tensors, first], values)
    behind = sums_of(1 + len(lengths) - cut, "behind")
    kernels = [
        *square_sums("squares", gradients[cut:], behind, REGION, 1),
        clip_coefficient("clip", behind, tensors[-1], REGION, max_norm=Constant(1.0)),
    ]
    given = np.zeros((1 + len(lengths) - cut, 16), np.float32)
    given[0] = found["total"]
    other = execute(kernels, [*tensors, behind], values | {"behind": given})
    assert same_bits(other["c"], whole["c"])
    # The order of the gradients matters, so a sum in another one would show.
    turned, _ = clipped(lengths[::-1], values={f"g{99 - i}": values[f"g{i}"] for i in range(100)})
    assert error(turned["c"], whole["c"]) < 1e-6
    assert not same_bits(turned["norm"], whole["norm"])


def test_a_small_scratchpad_has_smaller_pieces():
    lengths = (70_001, 3000)
    small = Region(1 << 16, 40 << 10)
    assert small.size_bytes < clipping.PIECE_ELEMENTS * 8
    one, other = clipped(lengths)[0], clipped(lengths, region=small)[0]
    assert error(other["norm"], one["norm"]) < 1e-6
    same = clipped(lengths, region=Region(1 << 16, 140 << 10))[0]
    assert same_bits(same["norm"], one["norm"])

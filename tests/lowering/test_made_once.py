"""Kernels of one shape are made once and renamed."""

import numpy as np
import pytest

from fpgapipe.hw.hls_models.isa.vector_op import Addend, Constant
from fpgapipe.hw.hls_models.numerics.element_format import BF16
from fpgapipe.lowering.kernels.activation import add
from fpgapipe.lowering.kernels.dropout import draw_factors, drop
from fpgapipe.lowering.kernels.softmax import softmax, softmax_gradient
from fpgapipe.lowering.tiling.channels import EachStep, channel_kernel
from fpgapipe.lowering.tiling.draw import Draw
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import Region, Tensor

REGION = Region(0, 1 << 18)


def kernel_of(make, names, places, *, shape=(700, 48), **options):
    """Instructions of a kernel for some tensors at some places."""
    tensors = [Tensor(name, shape) for name in names]
    kernel = make(*tensors, **options)
    assert kernel.reads | kernel.writes == set(names)
    return kernel.instructions(dict(zip(names, places, strict=True)))


def added(a, b, y, *, relu=False, once=True):
    make = flat_kernel if once else flat_kernel.__wrapped__
    step = FlatStep("a", "y", "b", {"addend": Addend.Y, "relu": relu})
    return make("sum", {"a": a, "b": b}, {"y": y}, [step], REGION)


@pytest.mark.parametrize("relu", [False, True])
def test_a_renamed_kernel_is_the_one_that_is_made_for_its_tensors(relu):
    for names, places in (
        (["a", "b", "c"], [0, 1 << 20, 1 << 21]),
        (["c", "d", "a"], [64, 0, 640]),
    ):
        once = kernel_of(added, names, places, relu=relu)
        assert once == kernel_of(added, names, places, relu=relu, once=False)


def test_kernels_of_one_shape_share_all_but_addresses():
    places = ("abc", [0, 64, 128]), ("xyz", [640, 0, 64])
    first, second = (kernel_of(added, *each) for each in places)
    assert first.bodies is second.bodies
    assert not np.array_equal(first.numbers, second.numbers)


def test_a_tensor_that_is_read_twice_or_written_in_place_has_one_address():
    tensor = Tensor("x", (700, 48))
    kernel = added(tensor, tensor, tensor)
    assert kernel.reads == kernel.writes == {"x"}
    assert kernel != added(tensor, tensor, Tensor("y", (700, 48)))
    assert kernel.instructions({"x": 64}) == added(tensor, tensor, tensor, once=False).instructions(
        {"x": 64}
    )


@pytest.mark.parametrize("make", [drop, draw_factors, softmax, softmax_gradient])
def test_random_numbers_are_those_of_the_layer_and_the_micro_batch(make):
    """Vectors that a kernel skips are added to those of its instructions, as addresses are."""

    def drawing(made, draw):
        names = ["x", "y"]
        tensors = [Tensor(name, (3, 64, 96)) for name in ("x", "y", "z")]
        options = {"draw": draw}
        if make is softmax:
            options |= {"causal": True, "dropped": tensors.pop()}
        elif make is softmax_gradient:
            options |= {"causal": True}
        else:
            tensors.pop()
        kernel = made("kernel", *tensors, REGION, **options)
        addresses = dict.fromkeys([*names, "z"], 0) | {"y": 1 << 20, "z": 1 << 21}
        return kernel.instructions(addresses).encode()

    draws = [Draw(0.1, 0, 2), Draw(0.1, 3, 2), Draw(0.1, 3, 2, first=7), Draw(0.1, 0, 4, first=7)]
    found = [drawing(make, draw) for draw in draws]
    assert found == [drawing(make.__wrapped__, draw) for draw in draws]
    assert len(set(found)) == len(draws)


def test_one_kernel_serves_all_draws():
    """A softmax is not made again for each micro-batch, though its random numbers differ."""
    kernels = [
        softmax(f"{first}", x, y, REGION, dropped=z, draw=Draw(0.3, 5, 0, first=first))
        for first in range(4)
        for x, y, z in ([Tensor(name, (3, 80, 96)) for name in "xyz"],)
    ]
    made = {id(each.pieces) for each in kernels}
    assert len(made) == 1
    assert [each.skipped - (5 << 36) for each in kernels] == [0, 1, 2, 3]


def test_a_kernel_that_was_renamed_is_renamed_again():
    """Also if its own function makes it with another order of tensors."""
    x, y = Tensor("x", (700, 48)), Tensor("y", (700, 48))
    once = add("sum", x, y, y, REGION).renamed("other", {"x": "a", "y": "b"})
    assert once.reads == {"a", "b"}
    assert once.writes == {"b"}
    again = once.renamed("third", {"a": "b", "b": "a"})
    assert again.writes == {"a"}
    assert again.instructions({"a": 0, "b": 64}) == once.instructions({"b": 0, "a": 64})


def test_kernels_differ_with_all_that_their_arguments_say():
    def scaled(constant, tensor):
        settings = {"addend": Addend.CONSTANT, "constants": (Constant(constant),)}
        return channel_kernel(
            "scaled",
            (96, 32),
            REGION,
            sources={"x": tensor},
            targets={"y": Tensor("y", (96, 32))},
            steps=[EachStep("x", "y", settings=settings)],
        ).instructions({"x": 0, "y": 1 << 16})

    plain = Tensor("x", (96, 32))
    found = [scaled(0.0, plain), scaled(-0.0, plain), scaled(0.0, Tensor("x", (96, 32), BF16))]
    encoded = [instructions.encode() for instructions in found]
    assert encoded[0] != encoded[1]
    assert encoded[0] != encoded[2]


def test_a_message_has_the_names_of_the_tensors():
    tensors = [Tensor(name, (700, 48)) for name in "abc"]
    with pytest.raises(ValueError, match="kernel sum needs"):
        add("sum", *tensors, Region(0, 64))

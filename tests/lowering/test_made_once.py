"""Kernels of one shape are made once and renamed."""

import pytest

from fpgapipe.hw.hls_models.isa.vector_op import Addend, Constant
from fpgapipe.hw.hls_models.numerics.element_format import BF16
from fpgapipe.lowering.kernels.activation import add
from fpgapipe.lowering.tiling.channels import EachStep, channel_kernel
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


def test_kernels_of_one_shape_share_what_is_no_transfer():
    first, second = (kernel_of(added, names, [0, 64, 128]) for names in ("abc", "xyz"))
    shared = [one is other for one, other in zip(first, second, strict=True)]
    assert any(shared)
    assert not all(shared)


def test_a_tensor_that_is_read_twice_or_written_in_place_has_one_address():
    tensor = Tensor("x", (700, 48))
    kernel = added(tensor, tensor, tensor)
    assert kernel.reads == kernel.writes == {"x"}
    assert kernel != added(tensor, tensor, Tensor("y", (700, 48)))
    assert kernel.instructions({"x": 64}) == added(tensor, tensor, tensor, once=False).instructions(
        {"x": 64}
    )


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
    encoded = [[each.encode() for each in instructions] for instructions in found]
    assert encoded[0] != encoded[1]
    assert encoded[0] != encoded[2]


def test_a_message_has_the_names_of_the_tensors():
    tensors = [Tensor(name, (700, 48)) for name in "abc"]
    with pytest.raises(ValueError, match="kernel sum needs"):
        add("sum", *tensors, Region(0, 64))

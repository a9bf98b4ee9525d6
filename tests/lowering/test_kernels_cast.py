"""Casts on the vector engine: FP32, BF16 and blocks of MXINT8."""

import numpy as np
import pytest
from kernel_cases import REGION, SMALL_REGION, drawn, execute, same_bits

from fpgapipe.hw.hls_models.isa.instructions import ErrorCode, Opcode
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.numerics import fp32, mx
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, VectorSpec
from fpgapipe.lowering.kernels.cast import blocks_of, cast
from fpgapipe.lowering.tiling.kernel import Region, Tensor
from fpgapipe.sim_tb.testbenches.tb_mx import random_blocks

SHAPES = [(1, 1), (5, 37), (7, 32), (2, 3, 100), (70, 64), (3, 40_000), (1500, 45), (2, 6, 16)]


def edges(shape):
    """Numbers as quantisers like them least."""
    number = -(-int(np.prod(shape)) // mx.MX_BLOCK)
    blocks = random_blocks(np.random.default_rng(5), number)
    values = blocks.reshape(-1)[: np.prod(shape)].view(np.float32)
    return values.reshape(shape)


def expected_blocks(values):
    """Rows as MXINT8, filled with zeros."""
    *rows, width = values.shape
    padded = np.zeros((*rows, -(-width // mx.MX_BLOCK) * mx.MX_BLOCK), np.float32)
    padded[..., :width] = values
    return mx.pack(padded.reshape(*rows, -1, mx.MX_BLOCK))


@pytest.mark.parametrize("element", [BF16, FP32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_casts_rows_to_blocks_and_back(shape, element):
    x, z = Tensor("x", shape, element), Tensor("z", shape, element)
    y = blocks_of(x, "y")
    for region in (REGION, SMALL_REGION):
        kernels = [cast("to", x, y, region), cast("from", y, z, region)]
        found = execute(kernels, [x, y, z], {"x": edges(shape)})
        np.testing.assert_array_equal(found["y"], expected_blocks(found["x"]))
        numbers = mx.unpack(found["y"]).reshape(*shape[:-1], -1)[..., : shape[-1]]
        assert same_bits(found["z"], fp32.flush(np.ascontiguousarray(numbers)))


def test_a_round_trip_is_near():
    x, z = Tensor("x", (40, 50)), Tensor("z", (40, 50), BF16)
    y = blocks_of(x, "y")
    assert (y.shape, y.size_bytes) == ((40, 50), 40 * 68)
    found = execute(
        [cast("to", x, y, REGION), cast("from", y, z, REGION)], [x, y, z], {"x": drawn((40, 50))}
    )
    largest = np.abs(found["x"]).max(axis=1, keepdims=True)
    assert (np.abs(found["z"] - found["x"]) <= largest / 64).all()
    assert not same_bits(found["z"], found["x"])


@pytest.mark.parametrize("formats", [(BF16, FP32), (FP32, BF16)], ids=str)
def test_casts_between_fp32_and_bf16(formats):
    x, y = Tensor("x", (3, 50), formats[0]), Tensor("y", (3, 50), formats[1])
    found = execute([cast("c", x, y, REGION)], [x, y], {"x": drawn((3, 50))})
    expected = fp32.from_bf16(fp32.to_bf16(found["x"]))
    assert same_bits(found["y"], expected)


def test_refuses():
    x = Tensor("x", (3, 50))
    blocks = blocks_of(x, "b")
    message = r"^cast from b to b must have a side that is not of blocks$"
    with pytest.raises(ValueError, match=message):
        cast("c", blocks, blocks, REGION)
    message = r"^cast tensor b must be \(3, 32\), not \(3, 50\)$"
    with pytest.raises(ValueError, match=message):
        cast("c", Tensor("x", (3, 32)), blocks, REGION)
    with pytest.raises(ValueError, match=r"^cast tensor y must be \(3, 50\), not \(50, 3\)$"):
        cast("c", x, Tensor("y", (50, 3), BF16), REGION)
    with pytest.raises(ValueError, match=r"^kernel c needs"):
        cast("c", Tensor("x", (2, 5001)), blocks_of(Tensor("", (2, 5001)), "y"), Region(0, 4096))


def test_a_core_without_blocks_stops():
    x = Tensor("x", (3, 50))
    (kernel,) = [cast("c", x, blocks_of(x, "y"), Region(0, 1 << 16))]
    program = kernel.instructions({"x": 0, "y": 1024})
    vectors = [index for index, each in enumerate(program) if each.opcode is Opcode.VECTOR]
    for spec, code in (
        (CoreSpec(8, 8, vector=VectorSpec()), ErrorCode.BAD_FIELD),
        (CoreSpec(8, 8), ErrorCode.BAD_OPCODE),
    ):
        model = CoreModel(spec, np.zeros(4096, np.uint8))
        with pytest.raises(CoreError) as caught:
            model.run(program)
        assert (caught.value.code, caught.value.index) == (code, vectors[0])

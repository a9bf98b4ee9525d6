"""Programs of several kernels: results do not depend on the order in which engines run them."""

import random
from itertools import permutations

import numpy as np
import pytest
from kernel_cases import (
    CORE,
    Region,
    bits_of,
    drawn,
    execute,
    place,
    program_of,
    reordered,
    same_bits,
)

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode, decode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import Constant, Source, Target, VectorOp
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.kernels.activation import activate, activation_gradient, add, add_bias
from fpgapipe.lowering.kernels.clipping import clip_coefficient, square_sums, sums_of
from fpgapipe.lowering.kernels.global_pooling import global_average
from fpgapipe.lowering.kernels.loss import (
    class_numbers,
    class_numbers_content,
    cross_entropy,
)
from fpgapipe.lowering.kernels.normalisation import BatchNorm, backward, forward
from fpgapipe.lowering.kernels.optimiser import Sgd, sgd
from fpgapipe.lowering.kernels.pooling import Pool, max_pool, max_pool_gradient
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.program.hazards import STORED
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Step, Tensor, VectorKernel
from fpgapipe.lowering.tiling.tile import tile_of

SHAPE = (12, 9, 10, 40)
SMALL = Region(1 << 20, 600 << 10)
SMALLER = Region(1 << 20, 100 << 10)
ENGINES = [Opcode.LOAD, Opcode.STORE, Opcode.GEMM, Opcode.VECTOR]


def network():
    """Kernels of a small network's step, its tensors and their contents."""
    names = ("x", "y", "dy", "dx", "dr", "r", "sum")
    t = {name: Tensor(name, SHAPE) for name in names}
    t |= {name: Tensor(name, SHAPE[-1:]) for name in ("g", "b", "rm", "rv", "dg", "db", "v")}
    pool = Pool((3, 3), (2, 2), (1, 1, 1, 1))
    pooled = (12, *pool.output(9, 10), 40)
    t |= {name: Tensor(name, pooled) for name in ("p", "index", "dp")}
    t |= {name: Tensor(name, (12, 40)) for name in ("logits", "dlogits")}
    t |= {name: Tensor(name, (size,)) for name, size in (("labels", 12), ("loss", 1), ("clip", 16))}
    t["squares"] = sums_of(2, "squares")
    table = class_numbers(40)
    norm = BatchNorm("bn", t["x"], t["g"], t["b"], t["rm"], t["rv"])
    t |= {tensor.name: tensor for tensor in (table, *norm.kept)}
    kernels = [
        *forward(norm, t["y"], SMALL, residual=t["r"], relu=True),
        max_pool("pool", pool, t["y"], t["p"], SMALLER, index=t["index"]),
        global_average("mean", t["p"], t["logits"], SMALLER),
        cross_entropy(
            "loss",
            t["logits"],
            t["labels"],
            t["loss"],
            Region(1 << 20, 8 << 10),
            gradient=t["dlogits"],
        ),
        max_pool_gradient("pool.dx", pool, t["dp"], t["index"], t["dy"], SMALLER),
        *backward(
            norm, t["dy"], t["dx"], (t["dg"], t["db"]), SMALL, activated=t["y"], masked=t["dr"]
        ),
        add("sum", t["dx"], t["dr"], t["sum"], SMALL),
        *square_sums("squares", [t["dg"], t["sum"]], t["squares"], SMALL),
        clip_coefficient("clip", t["squares"], t["clip"], SMALL, max_norm=Constant(1.0)),
        sgd(
            "sgd",
            Sgd(Constant(0.1), Constant(0.9)),
            t["g"],
            t["dg"],
            SMALL,
            velocity=t["v"],
            clip=t["clip"],
        ),
    ]
    values = {
        name: drawn(t[name].shape, seed) for seed, name in enumerate(("x", "r", "dp", "g", "b"))
    }
    values |= {name: np.ones(40, np.float32) for name in ("rm", "rv", "v")}
    values |= {"labels": np.arange(12), table.name: class_numbers_content(40)}
    return kernels, list(t.values()), values


def test_a_step_of_training_in_any_order():
    kernels, tensors, values = network()
    expected = execute(kernels, tensors, values)
    orders = [
        lambda ready, order=order: min(ready, key=order.index)
        for order in permutations([Opcode.LOAD, Opcode.STORE, Opcode.VECTOR])
    ]
    orders.append(random.Random(1).choice)
    for choose in orders:
        found = execute(kernels, tensors, values, checked=False, choose=choose)
        for name in expected:
            assert same_bits(found[name], expected[name]), name


def layer_with_products(bias_format=FP32):
    """A convolution, its bias and activation, and its gradients: both tracks."""
    conv = ConvSpec(cin=20, cout=24, kernel=(3, 3), pad=(1, 1, 1, 1), h=10, w=11, batch=3)
    x, out = (3, 10, 11, 20), (3, 10, 11, 24)
    t = {name: Tensor(name, out) for name in ("z", "y", "dy", "dz")}
    t |= {name: Tensor(name, x) for name in ("x", "dx", "x2")}
    t |= {name: Tensor(name, (24, 3, 3, 20)) for name in ("w", "dw")}
    t |= {"b": Tensor("b", (24,), bias_format), "db": Tensor("db", (24,))}
    core = CoreSpec(8, 8, scratchpad=ScratchpadSpec(4, 1 << 17))
    region = Region(1 << 19, 1 << 19)

    def product(name, which, *operands):
        tensors = tuple(t[operand] for operand in operands)
        return product_kernel(name, conv, which, tensors, core, MemorySpec())

    kernels = [
        product("conv", "forward", "x", "w", "z"),
        activate("other", t["x"], t["x2"], region),
        add_bias("bias", t["z"], t["b"], t["y"], region, relu=True),
        activation_gradient("act", t["dy"], t["y"], t["dz"], region, db=t["db"]),
        product("conv.dw", "weight", "x", "dz", "dw"),
        product("conv.dx", "input", "dz", "w", "dx"),
        sgd("sgd", Sgd(Constant(0.1)), t["w"], t["dw"], region),
    ]
    values = {name: drawn(t[name].shape, seed) for seed, name in enumerate(("x", "w", "b", "dy"))}
    return kernels, list(t.values()), values


@pytest.mark.parametrize("overlap", [None, CoreSpec(8, 8, vector=VectorSpec())], ids=str)
def test_both_tracks_in_any_order(overlap):
    kernels, tensors, values = layer_with_products()
    expected = execute(kernels, tensors, values)
    orders = [
        lambda ready, order=order: min(ready, key=order.index) for order in permutations(ENGINES)
    ]
    for choose in orders[::3]:
        found = execute(kernels, tensors, values, choose=choose, overlap=overlap)
        for name in expected:
            assert same_bits(found[name], expected[name]), name
    # The test can tell: without what makes kernels wait for each other, results differ.
    program = program_of(kernels, tensors, overlap)
    free = [
        Instruction(
            each.opcode,
            tuple(number for number in each.wait if number != STORED),
            tuple(number for number in each.signal if number != STORED),
            each.engine,
            each.body,
        )
        for each in program
    ]
    order = [Opcode.LOAD, Opcode.STORE, Opcode.GEMM, Opcode.VECTOR]
    wrong = reordered(free, lambda ready: min(ready, key=order.index))
    assert [each.opcode for each in wrong] != [each.opcode for each in program]


def test_programs_come_back_from_their_encoding():
    kernels, tensors, _ = network()
    program = program_of(kernels, tensors)
    assert decode(encode(program), CORE.num_engines) == program
    for each in program:
        if each.opcode is Opcode.VECTOR:
            assert VectorOp.decoded(each.body).encoded() == each.body


def test_each_instruction_has_its_kernel():
    kernels, tensors, _ = network()
    assembled = assemble(kernels, place(tensors)[0])
    assert len(assembled.kernel_of) == len(assembled.instructions) - 1
    assert sorted(set(assembled.kernel_of)) == list(range(len(kernels)))
    assert assembled.kernel_of == sorted(assembled.kernel_of)
    assert assembled.instructions[-1].opcode is Opcode.END


def test_kernels_wait_for_those_they_depend_on_alone():
    """A kernel of the other track on other tensors begins at once."""
    kernels, tensors, _ = layer_with_products()
    assembled = assemble(kernels, place(tensors)[0])
    waits = {
        number
        for number, each in zip(assembled.kernel_of, assembled.instructions, strict=False)
        if STORED in each.wait
    }
    # The update's gradient was there before the kernel in front of it began.
    assert waits == {2, 3, 4, 5}


def test_kernels_of_both_tracks_overlap():
    kernels, tensors, _ = layer_with_products()
    core = CoreSpec(8, 8, vector=VectorSpec())
    assembled = assemble(kernels, place(tensors)[0], core)
    serial = assemble(kernels, place(tensors)[0])
    assert assembled.kernel_of != sorted(assembled.kernel_of)
    assert sorted(assembled.kernel_of) == serial.kernel_of
    # What reads nothing of the convolution runs beside it.
    order = assembled.kernel_of
    assert order.index(1) < len(order) - order[::-1].index(0)
    for number in range(len(kernels)):
        own, other = (
            [
                (each.opcode, each.body)
                for kernel, each in zip(program.kernel_of, program.instructions, strict=False)
                if kernel == number
            ]
            for program in (assembled, serial)
        )
        assert own == other


def test_tensors_that_share_bytes_are_told_by_their_places():
    a, b, c = Tensor("a", (64,)), Tensor("b", (64,)), Tensor("c", (64,))
    region, conv = Region(1 << 19, 1 << 16), ConvSpec.linear(4, 16, 16)
    core = CoreSpec(8, 8, scratchpad=ScratchpadSpec(4, 1 << 17), vector=VectorSpec())
    product = product_kernel("p", conv, "forward", (a, c, b), core, MemorySpec())
    activation = activate("relu", Tensor("d", (64,)), Tensor("e", (64,)), region)
    places = {name: Placed(page(i * 4096), i * 4096 + 256) for i, name in enumerate("abcde")}
    apart = assemble([product, activation], places)
    assert not any(STORED in each.wait for each in apart.instructions)
    places["d"] = Placed(places["b"].begin + 192, places["b"].end + 192)
    shared = assemble([product, activation], places)
    assert sum(STORED in each.wait for each in shared.instructions) == 1
    places["d"] = Placed(places["b"].end, places["b"].end + 256)
    beside = assemble([product, activation], places)
    assert not any(STORED in each.wait for each in beside.instructions)


def test_kernels_refuse_a_region_that_is_too_small():
    tensors = [Tensor("x", (100_000,)), Tensor("y", (100_000,))]
    with pytest.raises(
        ValueError, match=r"^kernel relu needs 512 bytes of scratchpad, and has 256$"
    ):
        activate("relu", *tensors, Region(0, 256))


def test_kernels_refuse_buffers_that_are_loaded_and_stored():
    """A load would not wait for the store of the piece before last."""
    op = VectorOp((1,), Source(0), Target(0))
    piece = Piece(
        (Step(op, "x", "x"),),
        (Move(tile_of("t", 0, 64, []), "x"),),
        (Move(tile_of("t", 0, 64, []), "x"),),
    )
    VectorKernel("k", {"x": Buffer(64)}, (piece,) * 2, Region(0, 128))
    with pytest.raises(ValueError, match=r"^kernel k both loads and stores buffers x$"):
        VectorKernel("k", {"x": Buffer(64)}, (piece,) * 3, Region(0, 128))


def test_contents_in_memory():
    """How tests put numbers into memory."""
    tensor = Tensor("x", (2,), BF16)
    np.testing.assert_array_equal(bits_of(tensor, [1.0, -2.0]), [0x80, 0x3F, 0x00, 0xC0])

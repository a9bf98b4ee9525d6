"""A search for cuts judges them without their instructions: it must see what those do."""

import random
from dataclasses import replace

import numpy as np
import pytest

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import Addend, Constant, Source, Target, VectorOp
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, NoRoom, ScratchpadSpec
from fpgapipe.lowering.products import tiled_product as tiled_products
from fpgapipe.lowering.products.conv import PASSES, ConvSpec
from fpgapipe.lowering.products.conv_parts import Formats, Tiling
from fpgapipe.lowering.products.conv_passes import operations
from fpgapipe.lowering.products.emit import emit, rings_of
from fpgapipe.lowering.products.tiled_product import tile_product
from fpgapipe.lowering.products.tiling_search import TilingSearch
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    VectorKernel,
)
from fpgapipe.lowering.tiling.tile import tile_of

CORE = CoreSpec(8, 8, acc_depth=256, scratchpad=ScratchpadSpec(4, 1 << 15))
STRIDED = ConvSpec(40, 20, (3, 3), (2, 2), (1, 1, 1, 1), 9, 8, 2)
FEW_CHANNELS = ConvSpec(3, 20, (3, 3), (1, 1), (1, 1, 1, 1), 9, 8, 2)
WHERE = {"x": 1 << 20, "w": 2 << 20, "y": 3 << 20, "dx": 4 << 20, "dy": 5 << 20, "dw": 6 << 20}


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("conv", [STRIDED, FEW_CHANNELS], ids=["strided", "few channels"])
@pytest.mark.parametrize(
    "tiling", [Tiling(32, 2, 32), Tiling(64, 3, 32, n_outer=True, own_window=True)]
)
def test_a_sketch_sees_what_the_instructions_do(which, conv, tiling):
    memory = MemorySpec()
    search = TilingSearch(conv, which, CORE, Formats(w=FP32), memory)
    sketch = search.sketch(tiling)
    ops = tuple(operations(conv, which, CORE, tiling, Formats(w=FP32)))
    assert sketch.num_ops == len(ops)
    assert sketch.first_sizes == tuple(
        tile.size_bytes for tile in (ops[0].a, ops[0].b, ops[0].result)
    )
    assert sketch.last_bytes == ops[-1].result.size_bytes
    found = list(search.rings(sketch, 1))
    assert found == list(rings_of(ops, CORE.scratchpad, 1))
    assert found
    for rings in found:
        program = emit(ops, rings, WHERE)
        loaded = sum(
            len(list(tile.transfers(0, 0)))
            for numbers, slots in (
                (sketch.streamed, rings.a.slots),
                (sketch.stationary, rings.b.slots),
            )
            for tile in map(search.tile, search.loaded(numbers, slots))
        )
        assert loaded == sum(each.opcode is Opcode.LOAD for each in program)


def _drawn_product(seed):
    """A convolution, a core and a memory: a large one, or others at random."""
    rng = random.Random(seed)
    channels = [rng.choice((1, 3, 16, 31, 32, 33, 64, 100, 256)) for _ in range(2)]
    kernel, stride = rng.choice(((1, 1), (1, 2), (3, 1), (3, 2), (5, 1)))
    size, batch = rng.choice((1, 5, 8, 14, 28)), rng.choice((1, 2, 5))
    if not seed:
        large = CoreSpec(32, 128, scratchpad=ScratchpadSpec(2, 1 << 22))
        return ConvSpec(64, 64, (3, 3), (1, 1), (1,) * 4, 56, 56, 2), large, MemorySpec(44.3, 42)
    conv = ConvSpec(*channels, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 4, size, size, batch)
    shape = rng.choice(((4, 4), (8, 8), (16, 64), (32, 32), (32, 128)))
    pad = ScratchpadSpec(4, rng.choice((1 << 12, 1 << 14, 1 << 16, 1 << 18)))
    core = CoreSpec(*shape, acc_depth=rng.choice((64, 256, 1024)), scratchpad=pad)
    return conv, core, MemorySpec(rng.choice((4.0, 20.0, 44.3, 64.0)), rng.choice((0, 40)))


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("is_repeated", [False, True])
def test_tilings_are_left_out_that_are_not_looked_at(which, is_repeated, monkeypatch):
    """All tilings, and those with less work than the best others, have the same best one."""
    left_out = 0
    search = tiled_products._choices

    def count(*args, **options):
        nonlocal left_out
        found = search(*args, **options)
        left_out += found[1]
        return found

    monkeypatch.setattr(tiled_products, "_choices", count)
    for seed in range(24):
        conv, core, memory = _drawn_product(seed)
        found = []
        for kept in (tiled_products.KEPT, 0):
            monkeypatch.setattr(tiled_products, "KEPT", kept)
            try:
                product = tile_product.__wrapped__(
                    conv, which, core, Formats(w=FP32), memory, is_repeated=is_repeated
                )
                found.append((product.tiling, product.rings, len(product.ops)))
            except NoRoom as error:
                found.append(str(error))
        monkeypatch.undo()
        monkeypatch.setattr(tiled_products, "_choices", count)
        assert found[0] == found[1], (conv, core)
    assert left_out or is_repeated


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_what_a_ring_loads(slots):
    rng = random.Random(slots)
    tiling = Tiling(8, 1, 32)
    search = TilingSearch(STRIDED, "forward", CORE, Formats(), MemorySpec())
    sketch = search.sketch(tiling)
    ops = rng.choices(list(operations(STRIDED, "forward", CORE, tiling, Formats())), k=60)
    rings = next(rings_of(ops, CORE.scratchpad))
    few = replace(rings, a=replace(rings.a, slots=slots))
    numbers = {search.tile(number): number for number in set(sketch.streamed.tolist())}
    assert len(numbers) > 3
    loaded = [
        search.tile(number).offset
        for number in search.loaded(np.array([numbers[op.a] for op in ops]), slots)
    ]
    program = emit(ops, few, dict.fromkeys(WHERE, 0) | {"x": 1 << 30})
    assert loaded == [
        each.body["memory"] - (1 << 30)
        for each in program
        if each.opcode is Opcode.LOAD and each.body["memory"] >= 1 << 30
    ]


def test_programs_of_a_cut_differ_in_addresses_only():
    tiled_product = tile_product(STRIDED, "weight", CORE, Formats(), MemorySpec())
    moved = {name: address + 4096 for name, address in WHERE.items()}
    first, second = tiled_product.program(WHERE), tiled_product.program(moved)
    assert encode(second) == encode(emit(tiled_product.ops, tiled_product.rings, moved))
    assert first.encode() == b"".join(encode([each]) for each in first)
    assert first.bodies is second.bodies
    apart = {
        b.body["memory"] - a.body["memory"]
        for a, b in zip(first, second, strict=True)
        if a.opcode in (Opcode.LOAD, Opcode.STORE)
    }
    assert apart == {4096}


def test_zero_and_minus_zero_are_different_constants():
    def program(value):
        op = VectorOp(
            (1,), Source(0), Target(0), addend=Addend.CONSTANT, constants=(Constant(value),)
        )
        tile = tile_of("x", 0, 64, [])
        piece = Piece(
            (Step(op, "in", "out"),), (Move(tile, "in"),), (Move(replace(tile, tensor="y"), "out"),)
        )
        buffers = {"in": Buffer(64), "out": Buffer(64)}
        kernel = VectorKernel("k", buffers, (piece,), Region(0, 1 << 10))
        return encode(kernel.instructions({"x": 0, "y": 64}))

    assert program(0.0) != program(-0.0)
    assert program(-0.0) == program(-0.0)


def test_two_blocks_of_a_reduction_are_cut_where_a_scratchpad_needs_it():
    conv = ConvSpec(32, 64, (3, 3), (1, 1), (1, 1, 1, 1), 4, 4, 2)
    core = CoreSpec(16, 2, scratchpad=ScratchpadSpec(4, 1 << 14, 8), bus_bytes=4)
    found = tile_product(conv, "input", core, Formats(w=FP32), MemorySpec(2.0, 10))
    assert found.tiling.k == 32
    large = replace(core, scratchpad=ScratchpadSpec(4, 1 << 16, 8))
    assert tile_product(conv, "input", large, Formats(w=FP32), MemorySpec(2.0, 10)).tiling.k == 64


def test_a_tiling_is_timed_only_if_there_is_another_to_compare_it_with(monkeypatch):
    """Timing a product of thousands of instructions takes longer than finding its tiling."""
    timed = []
    monkeypatch.setattr(tiled_products, "predict", lambda *a: timed.append(a) or predict(*a))
    monkeypatch.setattr(tiled_products, "CLOSE_LOOKS", 1)
    found = tile_product(ConvSpec.linear(999, 64, 64), "forward", CORE, Formats(), MemorySpec())
    assert not timed
    assert found.prediction.cycles == found.loading_cycles > 0
    assert len(timed) == 1
    monkeypatch.setattr(tiled_products, "CLOSE_LOOKS", 4)
    tile_product(ConvSpec.linear(998, 64, 64), "forward", CORE, Formats(), MemorySpec())
    assert len(timed) > 2

"""A convolution's passes as programs: the core's model against their definition."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from core_cases import integers, random_case, reference

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.address import OperandPattern
from fpgapipe.hw.hls_models.isa.instructions import Opcode, decode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.products.conv import ConvSpec, PositionTile, chunks, spatial_tiles, tiled
from fpgapipe.lowering.products.conv_parts import Formats, Image, Tiling
from fpgapipe.lowering.products.conv_passes import operations, products
from fpgapipe.lowering.products.emit import emit, rings_of
from fpgapipe.lowering.products.tiled_product import TiledProduct
from fpgapipe.lowering.program.layer_program import (
    OPERANDS,
    RESULT,
    LayerProgram,
    PlacedTensor,
    lower_layer,
    place,
    random_operands,
)
from fpgapipe.lowering.tiling.tile import tile_of

SMALL = CoreSpec(8, 8, acc_depth=256, scratchpad=ScratchpadSpec(4, 1 << 14))


def run(program: LayerProgram, core, operands):
    """The result, after a check that nothing else in memory has changed."""
    memory = program.image(operands)
    before = memory.copy()
    model = CoreModel(core, memory)
    model.scratchpad[:] = 0xFF  # what was never loaded is NaN
    model.run(program.instructions)
    result = program.result
    at = slice(result.address, result.address + result.size_bytes)
    changed = memory != before
    changed[at] = False
    assert not changed.any()
    return result.decode(memory)


def test_random_layers_are_exact_where_their_numbers_are():
    """Integers of a few bits: nothing is rounded, so all orders of adding give the definition."""
    seen = set()
    for seed in range(250):
        conv, which, core, tiling, formats = random_case(seed)
        try:
            ops = tuple(operations(conv, which, core, tiling, formats))
        except ValueError:
            continue
        rings = next(rings_of(ops, core.scratchpad), None)
        if rings is None:
            continue
        program = place(conv, which, formats, TiledProduct(tiling, ops, rings, core, MemorySpec()))
        operands = integers(program, seed)
        got = run(program, core, operands)
        exact = reference(conv, which, operands)
        if program.result.format is BF16:
            np.testing.assert_allclose(got, exact, rtol=2**-8, err_msg=f"seed {seed}")
        else:
            np.testing.assert_array_equal(got, exact, err_msg=f"seed {seed}")
        seen.add((which, core.rows == 32, conv.cin < 32))
    assert len(seen) == 12, "some class of layers never came up"


def test_positions_that_no_tap_meets_take_one_block_of_products():
    """Three of four phases of a pointwise convolution of stride 2 are zeros, whatever `cout` is."""
    conv = ConvSpec(40, 100, stride=(2, 2), h=9, w=9, batch=2)
    core, formats, whole = SMALL, Formats(), Tiling(1 << 20, 1 << 20, 1 << 20)
    passes = products(conv, "input", core, formats, own_window=False)
    assert [each.slices(whole) for each in passes] == [[(0, 100)], *([[(0, 32)]] * 3)]
    program = lower_layer(conv, "input", core, formats)
    operands = integers(program, 0)
    got = run(program, core, operands)
    np.testing.assert_allclose(got, reference(conv, "input", operands), rtol=2**-8)
    assert not got[:, 1::2].any()
    assert not got[:, :, 1::2].any()


def parted(conv, seed):
    """The convolution with tensors that are parts of larger ones, and some that are not."""
    rng = np.random.default_rng(seed)
    sizes = {"x": conv.cin, "y": conv.cout} | ({"w": conv.cin} if conv.taps == 1 else {})
    apart = {
        f"{name}_pitch": int(size + rng.choice([1, 5, 16, 32, 64, 100]))
        for name, size in sizes.items()
        if rng.random() < 0.7
    }
    return replace(conv, **apart)


@dataclass(frozen=True)
class _Part:
    """A tensor whose rows are so many elements apart in memory, from an address on."""

    tensor: PlacedTensor
    pitch: int
    address: int

    @property
    def _num_rows(self):
        return int(np.prod(self.tensor.shape[:-1]))

    @property
    def end(self):
        return self.address + self._num_rows * self.pitch * self.tensor.format.element_bytes

    def of(self, memory):
        """View of the bytes of its rows."""
        size = self.tensor.format.element_bytes
        rows = memory[self.address : self.end].reshape(self._num_rows, self.pitch * size)
        return rows[:, : self.tensor.shape[-1] * size]

    def rows_of(self, values):
        """Values as bytes of rows."""
        return self.tensor.encode(values).reshape(self._num_rows, -1)


def test_products_of_parts_read_and_write_those_parts():
    """Around the pixels lie NaN; what a pass writes leaves the elements between them alone."""
    seen, refused = set(), 0
    for seed in range(250):
        conv, which, core, tiling, formats = random_case(seed)
        conv = parted(conv, seed)
        try:
            ops = tuple(operations(conv, which, core, tiling, formats))
        except ValueError as error:
            refused += "pixels of a packed" in str(error)
            continue
        rings = next(rings_of(ops, core.scratchpad), None)
        if rings is None:
            continue
        alone = replace(conv, x_pitch=None, w_pitch=None, y_pitch=None)
        program = place(alone, which, formats, TiledProduct(tiling, ops, rings, core, MemorySpec()))
        operands = integers(program, seed)
        pitches = {"x": conv.x_channels, "w": conv.w_channel // conv.taps, "y": conv.y_channels}
        parts, size = {}, 0
        for name, tensor in program.tensors.items():
            parts[name] = _Part(tensor, pitches[name[-1]], size)
            size = -(-parts[name].end // 64) * 64
        memory = np.full(size, 0xFF, np.uint8)
        for name in OPERANDS[which]:
            parts[name].of(memory)[:] = parts[name].rows_of(operands[name])
        before = memory.copy()
        model = CoreModel(core, memory)
        model.scratchpad[:] = 0xFF
        places = {name: part.address for name, part in parts.items()}
        model.run(TiledProduct(tiling, ops, rings, core, MemorySpec()).program(places))
        written = parts[RESULT[which]].of(memory)
        got = program.result.format.decode(written.reshape(-1), program.result.shape)
        exact = reference(conv, which, operands)
        np.testing.assert_allclose(got, exact, rtol=2**-8, err_msg=f"seed {seed}")
        written[:] = parts[RESULT[which]].of(before)
        np.testing.assert_array_equal(memory, before, err_msg=f"seed {seed}")
        seen.add((which, conv.cin < 32, conv.x_pitch is None, conv.y_pitch is None))
    assert len(seen) == 24, "some class of parts never came up"
    assert refused


def test_results_are_those_of_mxint8_blocks():
    """One linear layer by hand: blocks of 32, exact sums, one rounding to FP32 a block."""
    core = CoreSpec(32, 4, acc_depth=16, scratchpad=ScratchpadSpec(4, 1 << 12))
    program = lower_layer(ConvSpec.linear(3, 4, 40), "forward", core, Formats(y=FP32))
    operands = random_operands(program, 0)
    got = run(program, core, operands)
    x, w = (_bf16(operands[name].reshape(-1, 40)) for name in ("x", "w"))
    exact = np.zeros((3, 4), np.float32)
    for part in (slice(0, 32), slice(32, 40)):
        a, b = _mxint8(x[:, part]), _mxint8(w[:, part])
        exact = exact + (a @ b.T).astype(np.float32)
    np.testing.assert_array_equal(got.reshape(3, 4), exact)


def _bf16(values):
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def _mxint8(blocks):
    scale = 2.0 ** np.floor(np.log2(np.abs(blocks).max(axis=1, keepdims=True)))
    return np.clip(np.rint(blocks / scale * 64), -127, 127) / 64 * scale


@pytest.mark.parametrize("which", ["forward", "input", "weight"])
def test_tensors_larger_than_the_scratchpad(which):
    conv = ConvSpec(64, 80, (3, 3), (1, 1), (1, 1, 1, 1), 16, 16, 4)
    core = CoreSpec(16, 16, acc_depth=256, scratchpad=ScratchpadSpec(4, 1 << 15))
    program = lower_layer(conv, which, core)
    assert sum(t.size_bytes for t in program.tensors.values()) > 2 * core.scratchpad.size_bytes
    operands = integers(program, 1, most=3)
    exact = reference(conv, which, operands)
    np.testing.assert_allclose(run(program, core, operands), exact, rtol=2**-8)


def test_an_input_gradient_without_taps_is_zero():
    """A stride larger than the kernel leaves pixels that no output has seen."""
    conv = ConvSpec(8, 8, (1, 1), (3, 3), (0, 0, 0, 0), 7, 7, 1)
    program = lower_layer(conv, "input", SMALL)
    got = run(program, SMALL, integers(program, 2))
    seen = np.zeros((7, 7), bool)
    seen[::3, ::3] = True
    assert not got[:, ~seen].any()
    assert got[:, seen].any()


def test_pixels_without_taps_take_as_many_channels_as_others():
    """No coordinate of padding is further outside than its field can say."""
    conv = ConvSpec(32, 2048, (1, 1), (2, 2), (0, 0, 0, 0), 4, 4, 1)
    ops = list(operations(conv, "input", SMALL, Tiling(4, 1, 2048), Formats()))
    assert [op.first and op.last for op in ops] == [True] * len(ops)
    assert sum(not op.a.run_bytes for op in ops) == 3 * len(ops) // 4


def test_a_core_that_is_too_small_is_named():
    tiny = CoreSpec(4, 4, acc_depth=16, scratchpad=ScratchpadSpec(1, 256))
    with pytest.raises(NotImplementedError, match=r"needs more than the 256 bytes of scratchpad"):
        lower_layer(ConvSpec.linear(8, 64, 64), "forward", tiny)


def test_programs_survive_encoding():
    for which in ("forward", "input", "weight"):
        conv = ConvSpec(40, 20, (3, 3), (2, 2), (1, 1, 1, 1), 9, 8, 2)
        program = lower_layer(conv, which, SMALL)
        assert decode(encode(program.instructions)) == program.instructions
        assert program.instructions[-1].opcode == Opcode.END
        for each in program.instructions:
            if each.opcode == Opcode.GEMM:
                pattern = OperandPattern.decoded(each.body["a"])
                assert pattern.encoded() == each.body["a"]


def test_semaphores_let_every_program_end():
    for seed in range(60):
        conv, which, core, tiling, formats = random_case(seed)
        try:
            ops = tuple(operations(conv, which, core, tiling, formats))
        except ValueError:
            continue
        for rings in rings_of(ops, core.scratchpad, least_slots=1):
            addresses = dict.fromkeys(("x", "w", "y", "dx", "dy", "dw"), 0)
            program = emit(ops, rings, addresses)
            prediction = predict(program, core)
            assert prediction.cycles > 0
            counts = np.zeros(16, int)
            for each in program:
                counts[list(each.wait)] -= 1
                counts[list(each.signal)] += 1
            assert not counts.any(), "a program leaves its semaphores as it found them"


def test_pieces():
    assert chunks(10, 4) == [(0, 3), (3, 6), (6, 10)]
    assert tiled(70, 32, 2) == [(0, 32), (32, 70)]
    assert spatial_tiles(5, 2, 3, 12) == [
        PositionTile((0, 1), (0, 2), (0, 3)),
        PositionTile((1, 3), (0, 2), (0, 3)),
        PositionTile((3, 5), (0, 2), (0, 3)),
    ]
    assert [spatial_tile.size for spatial_tile in spatial_tiles(1, 5, 3, 7)] == [3, 6, 6]
    assert [spatial_tile.size for spatial_tile in spatial_tiles(1, 2, 5, 3)] == [2, 3, 2, 3]


def test_runs_that_are_apart_share_no_word():
    tile = tile_of("x", 70, 10, [(3, 100), (2, 300)])
    assert tile.pitches[0] % 64 == 100 % 64
    assert tile.pitches[1] == 3 * tile.pitches[0]
    words = [
        range(
            (tile.shift + i * tile.pitches[0]) // 64,
            (tile.shift + i * tile.pitches[0] + 9) // 64 + 1,
        )
        for i in range(6)
    ]
    assert len({word for each in words for word in each}) == sum(len(each) for each in words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cin": 0}, "conv cin must be at least 1, not 0"),
        ({"stride": (0, 1)}, "conv stride must be at least 1, not (0, 1)"),
        ({"pad": (0, -1, 0, 0)}, "conv pad must be at least 0, not (0, -1, 0, 0)"),
        ({"kernel": (9, 1)}, "conv kernel (9, 1) must fit the padded image of 4 x 4"),
    ],
)
def test_refuses_layers(change, message):
    with pytest.raises(
        ValueError, match="^" + message.replace("(", r"\(").replace(")", r"\)") + "$"
    ):
        ConvSpec(**{"cin": 1, "cout": 1, "h": 4, "w": 4} | change)


def test_too_many_sums_are_refused():
    with pytest.raises(ValueError, match=r"^64 vectors by 8 columns of tiles must fit 256 acc"):
        list(
            operations(ConvSpec.linear(64, 64, 64), "forward", SMALL, Tiling(64, 8, 32), Formats())
        )


ODD = ConvSpec(20, 33, (3, 2), (2, 1), (2, 1, 0, 3), 11, 12, 12)


def weight_cuts():
    """The whole, and pieces that begin anywhere, or with a row, in one image or in several."""
    return [Tiling(32, 4, k, own, own) for k in (10_000, 32, 160, 500) for own in (False, True)]


def test_the_weight_gradient_does_not_depend_on_the_cut():
    """Blocks of positions are added up in one order, wherever an instruction ends."""
    core = CoreSpec(8, 8, acc_depth=256, scratchpad=ScratchpadSpec(4, 1 << 18))
    found = []
    begins = set()
    for tiling in weight_cuts():
        ops = tuple(operations(ODD, "weight", core, tiling, Formats()))
        begins |= {tuple(np.minimum(op.b_pattern.pos_start, 1).tolist()) for op in ops}
        rings = next(rings_of(ops, core.scratchpad))
        program = place(
            ODD, "weight", Formats(), TiledProduct(tiling, ops, rings, core, MemorySpec())
        )
        found.append(run(program, core, random_operands(program, 3)))
    assert begins == {(0, 0), (1, 0), (0, 1), (1, 1)}
    for each in found[1:]:
        np.testing.assert_array_equal(each.view(np.uint32), found[0].view(np.uint32))


def test_a_slab_has_only_what_is_met():
    """Pixels from the first one that a piece meets to the last one, worked out by hand.

    Of 15 positions a row, the first piece has two rows and 2 positions, the second goes on to
    column 3 of row 4. Kernels go down by 2 and right by 1, from 2 above and 1 to the left.
    """
    core = CoreSpec(8, 8, acc_depth=256)
    sizes = []
    for own in (False, True):
        ops = list(operations(ODD, "weight", core, Tiling(64, 1, 32, own_window=own), Formats()))
        sizes.append([op.b.counts for op in ops[:2]])
    assert sizes == [
        [(4 * 12 + 2,), (8 * 12 + 4 - (2 * 12 + 1),)],
        [(2 * 12 + 2,), (6 * 12 + 4 - (2 * 12 + 1),)],
    ]


@pytest.mark.parametrize(
    ("conv", "core"),
    [
        (ConvSpec(3, 8, (3, 3), (1, 1), (1, 1, 1, 1), 57, 57, 1), (8, 8, 2048)),
        (ConvSpec(20, 9, (3, 3), (2, 2), (1, 1, 1, 1), 57, 57, 3), (8, 8, 8192)),
        (ConvSpec(10, 8, (1, 7), (1, 1), (0, 3, 0, 3), 5, 223, 1), (8, 8, 4096)),
        (ConvSpec(5, 8, (1, 1), (1, 1), (0, 0, 0, 0), 113, 113, 1), (4, 4, 2048)),
        (ConvSpec(40, 16, h=1, w=1, batch=333), (4, 4, 4096)),
    ],
    ids=str,
)
def test_the_weight_gradient_of_odd_images_larger_than_the_scratchpad(conv, core):
    rows, cols, bank_bytes = core
    core = CoreSpec(rows, cols, acc_depth=128, scratchpad=ScratchpadSpec(4, bank_bytes))
    program = lower_layer(conv, "weight", core)
    x = program.tensors["x"]
    assert x.size_bytes > core.scratchpad.size_bytes
    operands = integers(program, 4, most=5)
    np.testing.assert_array_equal(run(program, core, operands), reference(conv, "weight", operands))


def test_pixels_of_a_transfer_are_limited():
    image = Image("x", 300, 300, 8, BF16)
    assert image.run((5, 80_000), (0, 8)).size_bytes == 16 + 79_995 * 16
    with pytest.raises(ValueError, match=r"^79,995 pixels of 4 of 8 channels must be at most 65,"):
        image.run((5, 80_000), (4, 8))


def test_slabs_that_come_back_out_of_order():
    """Phases of a strided input gradient share some tiles and not others."""
    conv = ConvSpec(16, 24, (3, 3), (2, 2), (1, 1, 1, 1), 16, 14, 3)
    core = CoreSpec(8, 8, acc_depth=64, scratchpad=ScratchpadSpec(4, 1 << 12))
    ops = list(operations(conv, "input", core, Tiling(16, 1, 32), Formats()))
    for rings in rings_of(ops, core.scratchpad):
        program = place(
            conv,
            "input",
            Formats(),
            TiledProduct(Tiling(16, 1, 32), tuple(ops), rings, core, MemorySpec()),
        )
        assert predict(program.instructions, core).cycles > 0
        operands = integers(program, 5, most=8)
        exact = reference(conv, "input", operands)
        np.testing.assert_allclose(run(program, core, operands), exact, rtol=2**-8)

"""Address patterns: the model against loops and convolutions by hand, the gateware against it."""

import dataclasses
import itertools
import random
import re

import numpy as np
import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.isa.address import BLOCK, Loop, LoopNest, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.isa.gemm_fields import OPERAND, RESULT
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.rtl.gemm.address import AddressGenerator
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog
from fpgapipe.sim_tb.testbenches.tb_address import edge_patterns, random_loop_nest, random_pattern

TESTS = ("matches_model", "loses_no_cycle", "forgets_at_reset")
CORE = CoreSpec(4, 4, scratchpad=ScratchpadSpec(2, 4096))


def positions(loop_nest):
    """Address, y, u and whether the innermost loop ends, one loop inside the other."""
    a, b, c = loop_nest.loops
    for k, j, i in itertools.product(range(c.count), range(b.count), range(a.count)):
        yield (
            i * a.address + j * b.address + k * c.address,
            i * a.y + j * b.y + k * c.y,
            i * a.u + j * b.u + k * c.u,
            i == a.count - 1,
        )


def naive_words(pattern):
    """Address, elements, part and columns of each word, as the pattern's description reads."""
    p = pattern
    # What comes before the first position is no position of the pattern, whose base is the first.
    before = p.pos_start[0] + p.pos_start[1] * p.pos.loops[0].count
    steps = list(positions(p.pos))[before:]
    first = steps[0]
    steps = [
        (*(a - b for a, b in zip(step[:3], first[:3], strict=True)), step[3]) for step in steps
    ]

    def word(outer, tap, pos, sub):
        address = p.base + outer[0] + tap[0] + (pos[0] if pos else 0)
        y = p.y + outer[1] + tap[1] + (pos[1] if pos else 0)
        u = p.u + outer[2] + tap[2] + (pos[2] if pos else 0)
        lanes = p.lanes_last if (outer if p.lanes_by_outer else tap)[3] else BLOCK
        elements = [
            pos is not None and 0 <= y < p.y_limit and 0 <= u + e < p.u_limit and e < lanes
            for e in range(BLOCK)
        ]
        return address, elements, sub, p.emit_last if tap[3] else p.emit

    for outer in positions(p.outer):
        if p.walks_blocks:
            for block in range(p.blocks):
                for sub in range(p.subs_last if block == p.blocks - 1 else p.subs):
                    for tap in positions(p.tap):
                        for i in range(BLOCK):
                            number = BLOCK * block + i
                            pos = steps[number] if number < len(steps) else None
                            yield word(outer, tap, pos, sub)
        else:
            for tap in positions(p.tap):
                for sub in range(p.subs_last if tap[3] else p.subs):
                    for pos in steps:
                        yield word(outer, tap, pos, sub)


@pytest.mark.parametrize("seed", range(40))
def test_words_are_those_of_nested_loops(seed):
    pattern = random_pattern(random.Random(seed), CORE, 150)
    words = pattern.words()
    naive = list(naive_words(pattern))
    np.testing.assert_array_equal(words.lanes, [elements for _, elements, _, _ in naive])
    np.testing.assert_array_equal(words.sub, [sub for _, _, sub, _ in naive])
    np.testing.assert_array_equal(words.emit, [emit for _, _, _, emit in naive])
    used = words.lanes.any(axis=1)
    np.testing.assert_array_equal(
        words.address[used], np.array([address for address, _, _, _ in naive])[used]
    )


def bf16(values):
    """Bytes of numbers that BF16 has."""
    return (np.asarray(values, np.float32).reshape(-1).view(np.uint32) >> 16).astype("<u2")


def scratchpad(values, size=8192, at=0):
    """A scratchpad with numbers, as BF16, from a byte on."""
    memory = np.full(size // 2, 0x7FC0, np.uint16)  # NaN: what must not be read
    numbers = bf16(values)
    memory[at // 2 : at // 2 + numbers.size] = numbers
    return memory.view(np.uint8)


def test_convolution_with_padding_and_stride_equals_im2col():
    height, width, channels, stride = 5, 4, 40, 2
    x = np.arange(height * width * channels).reshape(height, width, channels) % 251
    row, pixel = 2 * width * channels, 2 * channels
    pattern = OperandPattern(
        base=64 - row - pixel,
        # 40 channels are a block and 8 more; then the kernel's columns and rows.
        tap=LoopNest((Loop(2, 64, u=BLOCK), Loop(3, pixel, u=channels), Loop(3, row, y=1))),
        pos=LoopNest((Loop(2, stride * pixel, u=stride * channels), Loop(3, stride * row, y=2))),
        y=-1,
        u=-channels,
        y_limit=height,
        u_limit=width * channels,
        lanes_last=8,
    )
    columns = []
    for ky, kx, chunk in itertools.product(range(3), range(3), range(2)):
        for oy, ox in itertools.product(range(3), range(2)):
            vector = np.zeros(BLOCK)
            y, x_ = oy * stride + ky - 1, ox * stride + kx - 1
            if 0 <= y < height and 0 <= x_ < width:
                part = x[y, x_, chunk * BLOCK : (chunk + 1) * BLOCK]
                vector[: part.size] = part
            columns.append(vector)
    vectors, sub = pattern.vectors(scratchpad(x, at=64))
    np.testing.assert_array_equal(vectors, columns)
    assert not sub.any()
    assert vectors[0].tolist() == [0] * BLOCK  # the corner above and left of the image
    assert vectors[4 * 12 + 3].any()


def test_few_channels_of_a_kernels_row_are_packed_in_a_word():
    height, width, channels = 3, 4, 3
    x = np.arange(1, 1 + height * width * channels).reshape(height, width, channels)
    pattern = OperandPattern(
        base=64 - 2 * (width + 1) * channels,
        tap=LoopNest((Loop(), Loop(3, 2 * width * channels, y=1))),
        pos=LoopNest(
            (Loop(width, 2 * channels, u=channels), Loop(height, 2 * width * channels, y=1))
        ),
        y=-1,
        u=-channels,
        y_limit=height,
        u_limit=width * channels,
        lanes_last=3 * channels,
    )
    vectors, _ = pattern.vectors(scratchpad(x, at=64))
    # Tap 1 is the kernel's middle row; positions 0, 1 and 3 are the first row's.
    middle = vectors[height * width :]
    assert middle[0, :10].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 0]
    assert middle[1, :10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert middle[3, :10].tolist() == [7, 8, 9, 10, 11, 12, 0, 0, 0, 0]
    assert not vectors[:width].any()  # the row above the image
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    for ky, oy, ox in itertools.product(range(3), range(height), range(width)):
        vector = vectors[(ky * height + oy) * width + ox]
        np.testing.assert_array_equal(vector[:9], padded[oy + ky, ox : ox + 3].reshape(-1))
        assert not vector[9:].any()


def test_starts_in_the_middle_of_a_row():
    """A row of 5 positions, the base at the third of the second row."""
    pattern = OperandPattern(
        base=1000,
        pos=LoopNest((Loop(5, 2, u=1), Loop(3, 100, y=1), Loop(2, 5000))),
        tap=LoopNest((Loop(2, 10000),)),
        pos_start=(2, 1),
        y=1,
        u=2,
        y_limit=3,
    )
    rest = [1000, 1002, 1004, 1096, 1098, 1100, 1102, 1104]
    image = [5896 + 100 * y + 2 * x for y in range(3) for x in range(5)]
    once = rest + image
    words = pattern.words()
    np.testing.assert_array_equal(words.address, once + [10000 + each for each in once])
    assert pattern.positions == 23
    # The image's last elements are those of u_limit, so each word has as many as its column leaves.
    columns = [2, 3, 4, *range(5), *list(range(5)) * 3]
    np.testing.assert_array_equal(words.lanes.sum(axis=1), [32 - u for u in columns * 2])


@pytest.mark.parametrize("rows", [8, 32])
def test_blocks_of_positions_are_transposed_and_read_again_for_each_tap(rows):
    positions_, channels = 40, 48
    x = np.arange(positions_ * channels).reshape(positions_, channels) % 200 + 1
    pattern = OperandPattern(
        base=0,
        tap=LoopNest((Loop(2, 64, u=BLOCK),)),
        pos=LoopNest((Loop(8, 2 * channels), Loop(5, 2 * 8 * channels))),
        u_limit=channels,
        lanes_last=16,
        subs=BLOCK // rows,
        subs_last=1,
        blocks=2,
        walks_blocks=True,
        transposed=True,
        emit_last=16,
    )
    expected, parts = [], []
    for block in range(2):
        for sub in range(1 if block else BLOCK // rows):
            for channel in range(channels):
                column = np.zeros(BLOCK)
                there = x[block * BLOCK : (block + 1) * BLOCK, channel]
                column[: there.size] = there
                expected.append(column)
                parts.append(sub)
    vectors, sub = pattern.vectors(scratchpad(x))
    np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(sub, parts)


def test_reads_fp32_and_wraps_at_the_end():
    memory = np.zeros(256, np.uint8)
    memory[192:] = np.arange(16, dtype="<f4").view(np.uint8)
    memory[:64] = np.arange(16, 32, dtype="<f4").view(np.uint8)
    vectors, _ = OperandPattern(192, fp32=True).vectors(memory)
    assert vectors.tolist() == [list(range(32))]


def test_nothing_is_read_for_a_word_of_zeros():
    memory = np.zeros(256, np.uint8)
    vectors, _ = OperandPattern(-64, y=-1).vectors(memory)
    assert not vectors.any()
    for base in (-2, 256):
        with pytest.raises(IndexError, match=rf"^operand address must be in 0\.\.255, not {base}$"):
            OperandPattern(base).vectors(memory)


@pytest.mark.parametrize("seed", range(20))
def test_encoding_comes_back(seed):
    pattern = random_pattern(random.Random(seed), CORE)
    packed = OPERAND.pack(pattern.encoded())
    assert packed < 1 << OPERAND.bits
    assert OperandPattern.decoded(OPERAND.unpack(packed)) == pattern


def test_edge_patterns_have_encodings():
    for pattern in edge_patterns():
        again = OperandPattern.decoded(OPERAND.unpack(OPERAND.pack(pattern.encoded())))
        assert again == pattern


def test_jumps_add_up_to_the_offsets():
    rng = random.Random(5)
    for _ in range(20):
        loop_nest = random_loop_nest(rng, 60)
        fields = loop_nest.encoded()
        for name in ("address", "y", "u"):
            value, values = 0, []
            left = [f["count"] for f in fields]
            for _ in range(loop_nest.size):
                values.append(value)
                for k, f in enumerate(fields):
                    if left[k]:
                        left[k] -= 1
                        left[:k] = [inner["count"] for inner in fields[:k]]
                        value += f[name]
                        break
            np.testing.assert_array_equal(values, loop_nest.offsets(name))


def test_result_pattern_by_hand():
    outer = LoopNest((Loop(2, 16, u=8),))
    pos = LoopNest((Loop(3, 100), Loop(2, 1000)))
    pattern = ResultPattern(10, outer, pos, u_limit=11)
    np.testing.assert_array_equal(
        pattern.addresses(),
        [[10, 110, 210, 1010, 1110, 1210], [26, 126, 226, 1026, 1126, 1226]],
    )
    np.testing.assert_array_equal(pattern.columns(4), [[True] * 4, [True] * 3 + [False]])
    again = ResultPattern.decoded(RESULT.unpack(RESULT.pack(pattern.encoded())))
    assert again == dataclasses.replace(pattern)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loop(0), "loop count must be in 1..65536, not 0"),
        (lambda: Loop(65537), "loop count must be in 1..65536, not 65537"),
        (lambda: LoopNest((Loop(),) * 4), "loop nest must have at most 3 loops, not 4"),
        (lambda: OperandPattern(3), "operand base must be even, not 3"),
        (lambda: OperandPattern(0, lanes_last=0), "operand lanes_last must be in 1..32, not 0"),
        (lambda: OperandPattern(0, emit=33), "operand emit must be in 1..32, not 33"),
        (lambda: OperandPattern(0, emit_last=0), "operand emit_last must be in 1..32, not 0"),
        (lambda: OperandPattern(0, subs=0), "operand subs must be in 1..32, not 0"),
        (lambda: OperandPattern(0, subs_last=40), "operand subs_last must be in 1..32, not 40"),
        (lambda: OperandPattern(0, blocks=0), "operand blocks must be in 1..65536, not 0"),
        (
            lambda: OperandPattern(0, transposed=True, pos=LoopNest((Loop(31),))),
            "operand transposed in a sweep must have 32 iterations innermost, not 31",
        ),
        (
            lambda: OperandPattern(0, pos=LoopNest((Loop(7), Loop(3))), pos_start=(6, 3)),
            "operand pos_start must lie in loops of 7 and 3 iterations, not be (6, 3)",
        ),
        (
            lambda: OperandPattern(0, transposed=True, pos=LoopNest((Loop(32),)), pos_start=(5, 0)),
            "operand transposed in a sweep must start with a whole square, not at iteration 5 of "
            "32",
        ),
        (
            lambda: OperandPattern(0, y=-1, pos=LoopNest((Loop(2), Loop(32769, y=-1)))),
            "operand y must stay in -32768..32767 (16 bits), not reach -32769",
        ),
        (
            lambda: OperandPattern(0, outer=LoopNest((Loop(65536, u=129),))),
            "operand u must stay in -8388608..8388607 (24 bits), not reach 8454015",
        ),
        (
            lambda: OperandPattern(2, tap=LoopNest((Loop(2, (1 << 31) - 2),))),
            "operand address must stay in -2147483648..2147483647 (32 bits), not reach 2147483648",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.sim
@pytest.mark.parametrize("rows", [4, pytest.param(32, marks=pytest.mark.slow)])
def test_gateware_matches_model(rows, tmp_path):
    spec = dataclasses.replace(CORE, rows=rows)
    assert simulate(AddressGenerator(spec), "tb_address", tmp_path).tests == TESTS


# A fault in the Verilog, and the test that has to see it.
FAULTS = {
    "does not rewind": (r"(assign restore = )\\\S+[^;]*;", r"\g<1>1'h0;", "matches_model"),
    "ignores the last lanes": (r"(assign cut = )[^;]*;", r"\1above;", "matches_model"),
    "makes no difference between parts": (
        r"(assign sub_last = )\S+ +\? (\S+) +: \S+ ;",
        r"\1\2 ;",
        "matches_model",
    ),
    "begins every row in its middle": (
        r"(assign \S+ += )restarts \? first0 : count0;",
        r"\1first0;",
        "matches_model",
    ),
    "begins an operand again with all rows": (
        r"(assign \S+ += )restarts \? first1 : count1;",
        r"\1count1;",
        "matches_model",
    ),
    "has padding after no block": (r"~ exhausted", "1'h1", "matches_model"),
    "moves on while a request waits": (
        r"assign advance = [^;]*;",
        "assign advance = 1'h1;",
        "matches_model",
    ),
    "takes an operand a cycle late": (
        r"(assign i__ready = advance & )[^;]*;",
        r"\1~ valid[0];",
        "loses_no_cycle",
    ),
    "keeps a request through a reset": (
        r"\bhas_skid <= ",
        "if (!rst) has_skid <= ",
        "forgets_at_reset",
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    faulty, count = re.subn(pattern, replacement, verilog_of(AddressGenerator(CORE)), count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(
            faulty, "tb_address", tmp_path, parameters=dataclasses.asdict(CORE), seed=1
        )
    assert test in caught.value.failures

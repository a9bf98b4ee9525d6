"""Cycles and traffic of matrix products, against numbers worked by hand and against bounds."""

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fpgapipe.hw.hls_models.cycles.gemm import (
    ACCUMULATE_CYCLES,
    DRAIN_CYCLES,
    START_CYCLES,
    Axis,
    ProductSpec,
    compute_cycles,
    gemm_cost,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec

FIXED = START_CYCLES + ACCUMULATE_CYCLES + DRAIN_CYCLES


def product(m, k, n, **options):
    """A product of BF16 features by MXINT8 weights."""
    return ProductSpec(Axis(m), Axis(k), Axis(n), 2 * m * k, k * n + k * n // 32, 2 * m * n,
                       **options)  # fmt: skip


def node(
    rows=32, cols=32, scratchpad_bytes=1 << 20, bytes_per_cycle=0.0, latency_cycles=100, **options
):
    core = CoreSpec(rows, cols, scratchpad=ScratchpadSpec(1, scratchpad_bytes), **options)
    return NodeSpec(core, 1e8, bytes_per_cycle, latency_cycles)


# Axes and tiles


@pytest.mark.parametrize(
    ("axis", "width", "tiles"),
    [
        (Axis(64), 32, 2),
        (Axis(65), 32, 3),
        (Axis(64, 9), 32, 18),
        (Axis(48, 25), 32, 50),  # each tap takes two vectors, the second half empty
        (Axis(20, 9, 3), 16, 12),  # three taps of 20 channels fill 60 of 64 places
        (Axis(3, 49, 7), 32, 7),  # a first layer: seven taps of three channels fill 21 places
        (Axis(3, 49, 1), 32, 49),  # dilated: taps are not neighbours
        (Axis(16, 9, 3), 32, 6),
    ],
)
def test_tiles_of_an_axis(axis, width, tiles):
    assert axis.tiles(width) == tiles


# Cycles of a product


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 300), st.integers(1, 9))
def test_equal_blocks_take_the_cycles_of_the_array(rows, cols, m, num_tiles):
    array = SystolicSpec(rows, cols)
    assert compute_cycles(array, m, num_tiles) == array.cycles(m, num_tiles)


def test_one_tile_takes_the_cycles_of_the_array():
    cost = gemm_cost(product(100, 32, 32), node())
    # 33 for the weights, 100 vectors, 64 through the array
    assert cost.compute_cycles == SystolicSpec(32, 32).cycles(100) == 197
    assert cost.cycles == 197 + FIXED


def test_tiles_follow_each_other_without_a_pause():
    cost = gemm_cost(product(100, 64, 96), node())
    assert cost.compute_cycles == 33 + 6 * 100 + 64
    assert gemm_cost(product(100, 65, 96), node()).compute_cycles == 33 + 9 * 100 + 64
    assert gemm_cost(product(100, 64, 96, count=2), node()).compute_cycles == 33 + 12 * 100 + 64


def test_few_vectors_wait_for_their_weights():
    # Stationary weights load in 32 cycles each; with the one vector stationary instead, each of
    # its 4 pieces meets 128 rows of weights: as long.
    array = SystolicSpec(32, 32)
    assert compute_cycles(array, 1, 16) == array.cycles(1, 16) == 98 + 15 * 32
    assert gemm_cost(product(1, 128, 128), node()).compute_cycles == 98 + 15 * 32


def test_short_arrays_wait_for_the_accumulators():
    array = SystolicSpec(2, 2)
    assert compute_cycles(array, 3, 10, reduction_tiles=10) == 2 + 1 + 9 * ACCUMULATE_CYCLES + 3 + 4
    assert compute_cycles(array, 3, 10, reduction_tiles=1) == 2 + 1 + 9 * 3 + 3 + 4


def test_more_vectors_than_accumulators_are_cut_into_blocks():
    deep = gemm_cost(product(4096, 64, 32), node(acc_depth=4096))
    shallow = gemm_cost(product(4096, 64, 32), node(acc_depth=512))
    assert deep.compute_cycles == shallow.compute_cycles == 33 + 2 * 4096 + 64


def test_rows_pass_tiles_of_columns():
    # 33 columns are two tiles that 1024 vectors pass; 1024 columns are 32 tiles.
    assert gemm_cost(product(1024, 32, 33), node()).compute_cycles == 33 + 2 * 1024 + 64
    assert gemm_cost(product(33, 32, 1024), node()).compute_cycles == 33 + 32 * 33 + 64


def test_transposed_operands_come_in_whole_squares():
    plain = gemm_cost(product(40, 32, 32), node())
    turned = gemm_cost(product(40, 32, 32, transposed=True), node())
    assert (plain.compute_cycles, turned.compute_cycles) == (97 + 40, 97 + 64)


def test_steps_wait_for_each_other_and_keep_their_weights():
    one = product(32, 64, 64)
    spec = node(bytes_per_cycle=64.0, latency_cycles=0)
    ten = gemm_cost(product(32, 64, 64, steps=10), spec)
    assert ten.compute_cycles == 10 * gemm_cost(one, spec).compute_cycles
    assert ten.memory_bytes == 10 * (one.left_bytes + one.out_bytes) + one.right_bytes
    large = gemm_cost(
        product(32, 1024, 1024, steps=10), node(scratchpad_bytes=1 << 18, bytes_per_cycle=64.0)
    )
    assert large.memory_bytes >= 10 * product(32, 1024, 1024).right_bytes


def test_engines_share_a_node():
    """Two engines have half of scratchpad and memory each; as one, the columns of both."""
    one, half = product(256, 256, 256), node(bytes_per_cycle=8.0, scratchpad_bytes=1 << 19)
    both = node(bytes_per_cycle=16.0, num_engines=2)
    assert gemm_cost(one, both) == gemm_cost(one, half)
    wide = node(cols=64, bytes_per_cycle=16.0)
    assert gemm_cost(one, both, as_one=True) == gemm_cost(one, wide)
    assert (half.transfer_cycles(100), both.transfer_cycles(100)) == (13, 13)
    assert (both.transfer_cycles(100, as_one=True), node().transfer_cycles(100)) == (7, 0)


# Memory


def test_each_operand_crosses_the_memory_once_if_the_scratchpad_holds_them():
    one = product(512, 512, 512)
    cost = gemm_cost(one, node(scratchpad_bytes=2 << 20, bytes_per_cycle=64.0))
    assert cost.memory_bytes == one.left_bytes + one.right_bytes + one.out_bytes
    assert cost.memory_cycles == math.ceil(cost.memory_bytes / 64)


def test_a_small_scratchpad_costs_traffic_but_no_time_while_memory_keeps_up():
    one = product(2048, 2048, 2048)
    costs = [
        gemm_cost(one, node(scratchpad_bytes=size, bytes_per_cycle=64.0))
        for size in (1 << 25, 1 << 20, 1 << 17)
    ]
    traffic = [cost.memory_bytes for cost in costs]
    assert traffic == sorted(traffic)
    assert traffic[0] == one.left_bytes + one.right_bytes + one.out_bytes < traffic[2]
    assert len({cost.compute_cycles for cost in costs}) == 1


def test_what_does_not_fit_crosses_the_memory_again():
    # 111 of 65,536 vectors of 512 bytes fit twice beside two columns of tiles of 8,448 bytes.
    # Five columns beside 32 vectors would need seven passes over the vectors, which is more.
    one = product(65536, 256, 1024)
    cost = gemm_cost(one, node(scratchpad_bytes=1 << 17, bytes_per_cycle=64.0))
    assert cost.dataflow == "streamed"
    assert cost.memory_bytes == one.left_bytes + 591 * one.right_bytes + one.out_bytes


def test_first_load_and_last_store_are_exposed():
    cost = gemm_cost(product(32, 32, 32), node(bytes_per_cycle=8.0, latency_cycles=0))
    first = (32 * 64 + 1056) // 8 - 32  # all operands, but for what streams while it arrives
    last = 2048 // 8 - 32
    assert cost.memory_cycles == (2048 + 1056 + 2048) // 8 < 97 + 32 + first + last
    assert cost.cycles == 97 + 32 + first + last + FIXED


def test_memory_bound_and_compute_bound():
    one = product(256, 256, 256)
    slow = gemm_cost(one, node(bytes_per_cycle=0.5, latency_cycles=7))
    assert slow.cycles == slow.memory_cycles + FIXED + 7
    assert slow.memory_bytes == one.left_bytes + one.right_bytes + one.out_bytes
    fast = gemm_cost(one, node(bytes_per_cycle=1e6, latency_cycles=7))
    assert fast.cycles == fast.compute_cycles + FIXED + 7


def test_accumulated_results_are_read_as_well():
    one = product(64, 64, 64)
    spec = node(bytes_per_cycle=64.0)
    more = gemm_cost(product(64, 64, 64, accumulates=True), spec).memory_bytes
    # The vector engine reads the sum so far and what is added to it, and writes the new one.
    assert more - gemm_cost(one, spec).memory_bytes == 3 * one.out_bytes


def test_weights_that_the_array_would_wait_for_are_half_as_large():
    spec = node(bytes_per_cycle=64.0)
    vectors = 2 * spec.core.cols
    for weights in (False, True):
        few, enough = (
            gemm_cost(product(count, 64, 64, weights=weights), spec).memory_bytes
            - product(count, 64, 64).left_bytes
            - product(count, 64, 64).out_bytes
            for count in (vectors - 1, vectors)
        )
        assert enough == product(vectors, 64, 64).right_bytes
        assert few == (enough // 2 if weights else enough)


SIZES = st.integers(1, 700)
NODES = st.builds(
    node,
    st.sampled_from([4, 8, 16, 32]),
    st.integers(1, 32) | st.sampled_from([64, 96]),
    st.sampled_from([1 << 15, 1 << 17, 1 << 20]),
    st.sampled_from([0.0, 0.7, 8.0, 64.0]),
    acc_depth=st.sampled_from([32, 256, 1024]),
)


@given(SIZES, SIZES, SIZES, st.integers(1, 3), NODES)
def test_never_faster_than_the_cells_or_the_memory(m, k, n, count, spec):
    one = product(m, k, n, count=count)
    cost = gemm_cost(one, spec)
    assert cost.compute_cycles > one.macs / spec.core.cells
    assert cost.cycles >= max(cost.compute_cycles, cost.memory_cycles) + FIXED
    least = (one.left_bytes + one.right_bytes + one.out_bytes) * count
    assert cost.memory_bytes >= least


@given(SIZES, SIZES, SIZES, NODES, st.data())
def test_more_work_never_takes_less(m, k, n, spec, data):
    larger = [size + data.draw(st.integers(0, 100)) for size in (m, k, n)]
    small, large = gemm_cost(product(m, k, n), spec), gemm_cost(product(*larger), spec)
    busy = [max(cost.compute_cycles, cost.memory_cycles) for cost in (small, large)]
    assert busy[0] <= busy[1]
    # What is exposed at the ends may differ with the blocking, the rest may not.
    assert large.cycles >= busy[0]


@given(SIZES, SIZES, SIZES, NODES)
def test_a_larger_array_is_never_slower_with_enough_vectors(m, k, n, spec):
    rows, cols, acc_depth = spec.core.rows, spec.core.cols, spec.core.acc_depth
    # Tiles of fewer vectors than columns wait for weights, the more columns the longer.
    assume((cols <= 16 or not cols % 32) and min(m, n) >= 2 * cols and acc_depth >= 4 * cols)
    wide, narrow = (node(rows, width, acc_depth=acc_depth) for width in (2 * cols, cols))
    one = product(m, k, n)
    gained = gemm_cost(one, narrow).compute_cycles - gemm_cost(one, wide).compute_cycles
    assert gained >= -2 * cols  # more columns to load, and the way through them


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Axis(0), "axis channels must be at least 1, not 0"),
        (lambda: Axis(3, 9, 2), "axis run must divide 9 taps, not 2"),
        (lambda: product(1, 1, 1, count=0), "product count must be at least 1, not 0"),
        (
            lambda: gemm_cost(product(1, 1, 1), node(acc_depth=16)),
            "engine acc_depth must be at least its 32 rows, not 16",
        ),
        (
            lambda: gemm_cost(product(1, 1, 1), node(scratchpad_bytes=1024)),
            "engine scratchpad must be at least 16384 bytes (two tiles of FP32 operands for 32x32 "
            "cells), not 1024",
        ),
    ],
)
def test_refuses_sizes(build, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()

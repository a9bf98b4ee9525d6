"""Products whose operands share a bank: figures worked by hand, and machine code."""

import pytest

from fpgapipe.hw.hls_models.cycles import operand_cycles
from fpgapipe.hw.hls_models.cycles.operand_cycles import Reads, meeting
from fpgapipe.hw.hls_models.isa.address import Loop, LoopNest, OperandPattern

ROWS = COLS = 8
VECTORS, TILES = 64, 4


def reads(word, *, vectors=VECTORS, step=128, **more):
    """Reads of tiles whose vectors are a number of bytes apart, from a word of the bank."""
    loops = LoopNest((Loop(vectors, step),)), LoopNest((Loop(TILES),))
    operand = OperandPattern(64 * word, pos=loops[0], tap=loops[1], **more)
    return Reads.of(operand, ROWS, 2)


def cycles(a, b):
    """Cycles in which the vectors of a product go through the array."""
    return meeting(a, b, (VECTORS, TILES, 1), COLS, 0, 0).stream_cycles


def test_operands_wait_where_they_need_the_same_memory():
    even, odd = (reads(word, vectors=COLS) for word in (100, 101))
    a = reads(0)
    assert cycles(a, odd) == TILES * VECTORS
    # The next tile's columns are read in cycles that the streamed vectors leave: all of them lie in
    # even words. Those of the second tile can be read while the array waits for the first tile.
    later = (TILES - 1) * COLS
    assert TILES * VECTORS + later - COLS <= cycles(a, even) <= TILES * VECTORS + later
    # Vectors in words of either kind, in turns, leave half of the cycles.
    assert cycles(reads(0, step=64), even) <= TILES * VECTORS + TILES
    # Those that begin inside a word take both memories.
    assert cycles(reads(0, step=130), odd) >= TILES * VECTORS + later - COLS


def test_products_that_follow_each_other():
    found = meeting(reads(0), reads(101, vectors=COLS), (VECTORS, TILES, 1), COLS, 0, 0)
    assert found.last_tile_cycles == found.next_cycles == VECTORS
    assert found.first_late == 0
    late = meeting(reads(0), reads(100, vectors=COLS), (VECTORS, TILES, 1), COLS, 0, 0)
    assert late.first_late > COLS
    slow = meeting(reads(0), reads(101, vectors=COLS), (VECTORS, TILES, 1), COLS, 3, 0)
    assert slow.last_tile_cycles == 3 * (VECTORS - 1) + 1


def test_words_of_zeros_are_not_read():
    zeros = reads(100, vectors=COLS, y=2)
    assert not zeros.sides.any()
    assert cycles(reads(0), zeros) == TILES * VECTORS
    wide = reads(0, step=128, fp32=True)
    assert (wide.sides[:4] == [1, 2, 1, 2]).all()
    assert cycles(wide, reads(100, vectors=COLS)) > TILES * (2 * VECTORS - COLS)


def test_machine_code_changes_nothing(monkeypatch):
    pytest.importorskip("numba")
    parts = reads(0, step=130), reads(100, vectors=COLS, fp32=True)
    found = []
    for least in (10**12, 0):
        monkeypatch.setattr(operand_cycles, "FEW_READS", least)
        found.append(meeting(*parts, (VECTORS, TILES, 1), COLS, 2, 9))
    assert found[0] == found[1]

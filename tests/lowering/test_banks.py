"""Buffers of a kernel in the banks of the scratchpad."""

from itertools import pairwise, product

import numpy as np
import pytest

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.numerics.element_format import BF16
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.kernels.normalisation import BatchNorm, sums_and_factors
from fpgapipe.lowering.tiling.banks import apart
from fpgapipe.lowering.tiling.kernel import Region, Tensor

WORD = 64


def memories(begins, bank_bytes):
    """Bank and parity of the first word of each buffer."""
    return {name: (at // bank_bytes, at // WORD % 2) for name, at in begins.items()}


@pytest.mark.parametrize("banks", [1, 2, 4])
def test_what_is_read_together_is_in_two_memories(banks):
    rooms = dict.fromkeys("abcd", 6 * WORD)
    pairs = [("a", "c"), ("b", "d"), ("a", "d")]
    begins = apart(rooms, pairs, banks, 64 * WORD)
    found = memories(begins, 64 * WORD)
    assert all(found[one] != found[other] for one, other in pairs)


@pytest.mark.parametrize("banks", [2, 4])
def test_banks_are_better_than_halves_of_one(banks):
    """A narrow port reads the parts of a word from both memories of a bank."""
    pairs = [("a", "c"), ("b", "d")]
    begins = apart(dict.fromkeys("abcd", 7 * WORD), pairs, banks, 64 * WORD)
    assert all(begins[one] // (64 * WORD) != begins[other] // (64 * WORD) for one, other in pairs)


def test_random_buffers_do_not_overlap_and_stay_in_their_banks():
    rng = np.random.default_rng(0)
    for _ in range(300):
        count, banks, bank = int(rng.integers(1, 9)), int(rng.integers(1, 5)), 40 * WORD
        rooms = {f"b{n}": WORD * int(rng.integers(1, 20)) for n in range(count)}
        pairs = [pair for pair in product(rooms, rooms) if pair[0] < pair[1] and rng.random() < 0.3]
        if sum(rooms.values()) > banks * bank:
            continue
        begins = apart(rooms, pairs, banks, bank)
        assert list(begins) == list(rooms)
        spans = sorted((begins[name], begins[name] + rooms[name]) for name in rooms)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert spans[-1][1] <= banks * bank
        in_a_row = begins == {
            name: sum(list(rooms.values())[:n]) for n, name in enumerate(rooms)
        }  # fmt: skip
        inside = all(a // bank == (b - 1) // bank for a, b in spans)
        assert inside or in_a_row


def test_no_operands_of_a_normalisation_wait_for_each_other():
    """Each element of its first backward pass is read, masked and added twice: three operations."""
    positions, channels, lanes = 4096, 64, 16
    core = CoreSpec(32, 32, scratchpad=ScratchpadSpec(4, 1 << 18), vector=VectorSpec(lanes=lanes))
    bank = core.scratchpad.bank_bytes
    region = Region(2 * bank, 2 * bank, bank)
    x, dy, y, masked = (Tensor(name, (positions, channels), BF16) for name in ("x", "dy", "y", "m"))
    numbers = [Tensor(f"n{number}", (channels,)) for number in range(6)]
    norm = BatchNorm("norm", x, *numbers[:4])
    gradients = numbers[4], numbers[5]
    sums = sums_and_factors(norm, dy, gradients, region, activated=y, masked=masked)
    tensors = sorted(sums.reads | sums.writes)
    program = sums.instructions({name: at << 20 for at, name in enumerate(tensors)})
    found = predict(program, core, MemorySpec())
    vector = sum(
        end - start
        for each, start, end in zip(program, found.starts, found.ends, strict=False)
        if each.opcode is Opcode.VECTOR
    )
    assert vector < 1.3 * 3 * positions * channels / lanes

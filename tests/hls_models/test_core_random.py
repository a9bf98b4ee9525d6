"""Random layers on the simulated core, many on one device without reset, against the model."""

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
from core_cases import random_case
from device_programs import packed_rings
from program_classes import classes_of, reachable

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.products.conv_passes import operations
from fpgapipe.lowering.products.emit import rings_of
from fpgapipe.lowering.products.tiled_product import TiledProduct
from fpgapipe.lowering.program.layer_program import lower_layer, place, random_operands
from fpgapipe.sim_tb.native.core_device import build_device, run_program
from fpgapipe.sim_tb.native.native import NativeDevice

CORE = CoreSpec(8, 8, acc_depth=256, scratchpad=ScratchpadSpec(4, 1 << 15))
# The last ones have what is rare.
SEEDS = (*range(64), 270, 318, 337, 353, 556, 677)
MOST_MACS = 1 << 20
MEMORY_BYTES = 1 << 22

pytestmark = pytest.mark.sim


def random_program(seed):
    """A layer of `random_case` on `CORE`, or None if it does not fit or is large."""
    conv, which, _, cut, formats = random_case(seed)
    rng = random.Random(seed)
    formats = dataclasses.replace(formats, dw=rng.choice([BF16, FP32]))
    if conv.macs > MOST_MACS:
        return None
    try:
        ops = tuple(operations(conv, which, CORE, cut, formats))
    except ValueError:
        return None
    rings = list(rings_of(ops, CORE.scratchpad))
    # Where slots lie as it comes, operands and results meet in one bank.
    rings.append(packed_rings(ops, CORE.scratchpad.size_bytes, rng))
    rings = [ring for ring in (rng.choice(rings), rings[-1]) if ring is not None]
    return (
        place(conv, which, formats, TiledProduct(cut, ops, rings[0], CORE, MemorySpec()))
        if rings
        else None
    )


def test_random_programs_meet_all_classes(capsys):
    seen = Counter()
    for seed in SEEDS:
        if program := random_program(seed):
            seen += classes_of(
                program.conv, program.which, CORE, program.tiled_product.ops, program.instructions
            )
    with capsys.disabled():
        print()
        for name, count in sorted(seen.items()):
            print(f"{count:8d}  {name}")
    assert set(seen) == reachable()


def check(programs, pause):
    """Run programs by seed, one after the other, on one device; all memory equals the model's."""
    library, _, _ = build_device(CORE)
    registers = RegisterMap(CORE)
    clear = registers["CONTROL"].field("clear_status").mask
    with NativeDevice(
        library, memory_bytes=MEMORY_BYTES, latency_cycles=30 if pause else 1, pause=pause, seed=1
    ) as device:
        for seed, program in programs:
            image = program.image(random_operands(program, seed))
            device.memory[: image.size] = image
            device.write_register(registers.offset("CONTROL"), clear)
            run_program(device, registers, program.entry, program.memory_bytes)
            CoreModel(CORE, image).run(program.instructions)
            assert np.array_equal(device.memory[: image.size], image), (
                f"seed {seed}: {program.conv} {program.which} "
                f"{program.tiled_product.tiling} differs"
            )


@pytest.mark.parametrize("pause", [0, 0.4])
def test_random_programs(pause):
    programs = ((seed, random_program(seed)) for seed in SEEDS[int(pause > 0) :: 2])
    check(((seed, program) for seed, program in programs if program), pause)


def test_odd_images_larger_than_the_scratchpad():
    """Pieces of the weight gradient begin in the middle of rows, and go on through images."""
    convs = [
        ConvSpec(20, 9, (3, 3), (2, 2), (1, 1, 1, 1), 57, 57, 3),
        ConvSpec(5, 8, (1, 1), (1, 1), (0, 0, 0, 0), 113, 113, 2),
        ConvSpec(24, 8, (2, 2), (1, 1), (1, 0, 0, 1), 5, 223, 5),
    ]
    programs = [lower_layer(conv, "weight", CORE) for conv in convs]
    for program in programs:
        assert program.tensors["x"].size_bytes > CORE.scratchpad.size_bytes
        assert any(op.b_pattern.pos_start[0] for op in program.tiled_product.ops)
    check(enumerate(programs), pause=0)

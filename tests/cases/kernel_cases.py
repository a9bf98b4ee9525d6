"""Runs kernels on the model of a core, and says how far results are from a reference."""

from collections import Counter, deque

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec, check
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.tiling.kernel import Region, Tensor

CORE = CoreSpec(8, 8, scratchpad=ScratchpadSpec(4, 1 << 19), vector=VectorSpec(mx=True))
REGION = Region(1 << 20, 1 << 20)
SMALL_REGION = Region(0, 1 << 17)

JUNK = 0xA5
"""Byte that memory holds where nothing was written."""


def bits_of(tensor, values):
    """Bytes of a tensor in memory."""
    if tensor.format.has_blocks:
        assert values.size == tensor.size_bytes
        return values.reshape(-1)
    values = np.asarray(values, np.float32)
    assert values.size == tensor.elements, f"{tensor.name} has {values.size} values"
    return tensor.format.encode(values)


def values_of(tensor, raw):
    """Inverse of `bits_of`; blocks are returned as the bytes that they are."""
    if tensor.format.has_blocks:
        return raw.reshape(*tensor.shape[:-1], -1, tensor.format.block_bytes).copy()
    return tensor.format.decode(raw, tensor.shape).copy()


def place(tensors):
    """Give tensors their places in memory, one after the other, and say where the last ends."""
    places, at = {}, 0
    for tensor in tensors:
        places[tensor.name] = Placed(at, at + tensor.size_bytes)
        at = page(at + tensor.size_bytes)
    return places, at


def program_of(kernels, tensors, overlap=None):
    """Instructions of kernels, after a look at whether they can be encoded and end."""
    instructions = assemble(kernels, place(tensors)[0], overlap).instructions
    check(encode(instructions), SequencerSpec.of(CORE))
    return instructions


def reordered(instructions, choose):
    """A program in another order in which its engines may run it, as semaphores allow.

    Parameters
    ----------
    instructions : sequence of Instruction
    choose : callable
        Picks one of the engines that could begin; an engine is LOAD, STORE, VECTOR, or GEMM.
    """
    queues = {}
    for instruction in instructions[:-1]:
        queues.setdefault(instruction.opcode, deque()).append(instruction)
    counts = Counter()
    found = []
    while any(queues.values()):
        ready = [
            engine
            for engine, queue in sorted(queues.items())
            if queue and all(counts[number] for number in queue[0].wait)
        ]
        instruction = queues[choose(ready)].popleft()
        counts.subtract(instruction.wait)
        counts.update(instruction.signal)
        found.append(instruction)
    assert not any(counts.values()), "semaphores must come back to zero"
    return [*found, instructions[-1]]


def execute(kernels, tensors, values, scalars=None, *, checked=True, choose=None, overlap=None):
    """Run kernels on the core's model.

    Parameters
    ----------
    kernels : sequence of Kernel
    tensors : sequence of Tensor
        All that they touch.
    values : mapping of str to array
        Contents of some of them; the others begin as junk.
    scalars : mapping of int to float or int, optional
        Registers; of an int, the bits.
    checked : bool
        Whether to look at the program, which takes time if it is long.
    choose : callable, optional
        As for `reordered`.
    overlap : CoreSpec, optional
        As for `assemble`.

    Returns
    -------
    dict of str to float32 array, or uint8 array where elements are bytes
        Contents of all tensors afterwards.
    """
    places, end = place(tensors)
    memory = np.full(end, JUNK, np.uint8)
    for tensor in tensors:
        if tensor.name in values:
            at = places[tensor.name]
            memory[at.begin : at.end] = bits_of(tensor, values[tensor.name])
    if checked:
        instructions = program_of(kernels, tensors, overlap)
    else:
        instructions = assemble(kernels, places, overlap).instructions
    if choose:
        instructions = reordered(instructions, choose)
    core = CoreModel(CORE, memory)
    # Junk on chip is NaN: what reads it by mistake shows.
    core.scratchpad[:] = 0xFF
    for register, value in (scalars or {}).items():
        core.scalars[register] = (
            value if isinstance(value, int) else int(np.float32(value).view(np.uint32))
        )
    core.run(instructions)
    found = {}
    for tensor in tensors:
        at = places[tensor.name]
        found[tensor.name] = values_of(tensor, memory[at.begin : at.end])
        assert (memory[at.end : page(at.end)] == JUNK).all(), f"wrote behind {tensor.name}"
    return found


def vectors_of(kernels, tensors):
    """Vectors that the engine reads for kernels, and its instructions."""
    ops = [
        VectorOp.decoded(instruction.body)
        for instruction in assemble(kernels, place(tensors)[0]).instructions
        if instruction.opcode is Opcode.VECTOR
    ]
    return sum(op.num_vectors for op in ops), len(ops)


def drawn(shape, seed=0, scale=1.0, offset=0.0):
    """Normal numbers."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * scale + offset).astype(np.float32)


def error(found, expected):
    """Largest difference, relative to the largest magnitude that is expected."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"{found.shape}, not {expected.shape}"
    largest = np.abs(expected).max(initial=0)
    return float(np.abs(found - expected).max(initial=0) / (largest or 1))


def same_bits(found, expected):
    """Compare FP32 arrays bit for bit; all NaN are one, and zeros have signs."""
    found, expected = (np.asarray(each, np.float32) for each in (found, expected))
    nan = np.isnan(found) & np.isnan(expected)
    return found.shape == expected.shape and bool(
        ((found.view(np.uint32) == expected.view(np.uint32)) | nan).all()
    )


def named(*specs):
    """Tensors of ``(name, shape)`` or ``(name, shape, bytes of an element)``."""
    return [Tensor(*spec) for spec in specs]

"""Programs for the tests of whole devices: layers, and what can be made of them."""

import dataclasses
import random
from dataclasses import dataclass

import numpy as np
from vector_cases import random_op, random_scratchpad

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.model.dma import row_starts, words_of_row
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.products.conv_parts import Formats, Tiling
from fpgapipe.lowering.products.conv_passes import operations
from fpgapipe.lowering.products.emit import Ring, Rings
from fpgapipe.lowering.products.tiled_product import TiledProduct
from fpgapipe.lowering.program.layer_program import place, random_operands


@dataclass
class Program:
    """Instructions, and the bytes of memory that they find."""

    instructions: list
    memory: np.ndarray

    def bytes_of(self, opcode):
        """Bytes that transfers move over the bus."""
        return sum(
            words_of_row(memory, item.body["row_bytes"])[1]
            for item in self.instructions
            if item.opcode == opcode
            for memory, _ in row_starts(item.body)
        )

    def vectors(self, engine):
        """Vectors that enter an engine's array."""
        shapes = [
            item.body["extent"]
            for item in self.instructions
            if item.opcode == Opcode.GEMM and item.engine == engine
        ]
        return sum((s["m"] + 1) * (s["k"] + 1) * (s["n"] + 1) for s in shapes)

    def counters(self, spec):
        """Values of counters after the program has run to its end."""
        found = {
            "INSTRUCTIONS": len(self.instructions) - 1,
            "LOAD_BYTES": self.bytes_of(Opcode.LOAD),
            "STORE_BYTES": self.bytes_of(Opcode.STORE),
        }
        for engine in range(spec.num_engines):
            found[f"GEMM{engine}_VECTORS"] = self.vectors(engine)
        if spec.vector:
            of_vector = [item for item in self.instructions if item.opcode == Opcode.VECTOR]
            number = sum(VectorOp.decoded(item.body).num_vectors for item in of_vector)
            found["VECTOR_VECTORS"] = number
            found |= {} if of_vector else {"VECTOR_BUSY": 0}
        busy = {"LOAD": Opcode.LOAD, "STORE": Opcode.STORE}
        found |= {f"{name}_BUSY": 0 for name, code in busy.items() if not self.bytes_of(code)}
        found |= {f"GEMM{e}_BUSY": 0 for e in range(spec.num_engines) if not self.vectors(e)}
        return found


def packed_rings(ops, size_bytes, rng):
    """Slots wherever they come to lie, so that operands and results share banks."""
    # With fewer columns than channels, words of the weight gradient may begin in the padding before
    # a slot, a pixel before it; nothing of them counts, but they must be in the scratchpad.
    rings, at = {}, 512
    for name in rng.sample(("a", "b", "result"), 3):
        tiles = {getattr(op, name) for op in ops}
        slot = max(max(tile.size_bytes for tile in tiles), 64)
        rings[name] = Ring(at, slot, min(len(tiles), rng.choice([2, 2, 3, 5])))
        at += slot * rings[name].slots + 64 * rng.randrange(3)
    return Rings(**rings) if at <= size_bytes else None


def layer(spec, which, seed, *, conv=None, cut=None, formats=None, most=900, size_bytes=None):
    """One pass of a random small layer that fits."""
    rng = random.Random(f"{which} {seed}")
    size_bytes = size_bytes or spec.scratchpad.size_bytes
    while True:
        shape = conv or random_layer(rng)
        one_cut = cut or Tiling(
            rng.choice([32, 64]), rng.choice([1, 2, 5]), rng.choice([32, 64]), rng.random() < 0.5
        )
        kinds = formats or Formats(*(rng.choice([BF16, FP32]) for _ in range(4)))
        if shape.macs > most * spec.rows * spec.cols * 2:
            continue
        try:
            ops = tuple(operations(shape, which, spec, one_cut, kinds))
        except ValueError:
            continue
        rings = packed_rings(ops, size_bytes, rng)
        if rings is None or sum(op.m * op.k * op.n for op in ops) > most:
            continue
        placed = place(shape, which, kinds, TiledProduct(one_cut, ops, rings, spec, MemorySpec()))
        image = placed.image(random_operands(placed, seed))
        return Program(placed.instructions, image[: placed.entry])


def random_layer(rng):
    """A convolution of a few channels and pixels, or a linear layer."""
    if rng.random() < 0.2:
        return ConvSpec.linear(rng.randint(1, 20), rng.randint(1, 12), rng.randint(1, 80))
    while True:
        try:
            return ConvSpec(
                cin=rng.choice([1, 3, 5, 20, 33]),
                cout=rng.choice([1, 5, 8, 34]),
                kernel=(rng.randint(1, 3), rng.randint(1, 3)),
                stride=(rng.randint(1, 2), rng.randint(1, 2)),
                pad=tuple(rng.randint(0, 2) for _ in range(4)),
                h=rng.randint(1, 5),
                w=rng.randint(1, 5),
                batch=rng.choice([1, 2]),
                dilation=(rng.choice([1, 1, 2]), 1),
            )
        except ValueError:
            continue


def vectors(spec, seed, *, size_bytes=None, rounds=2, first=0):
    """Random VECTOR instructions on a part of the scratchpad, which is stored after each round.

    Parameters
    ----------
    spec : CoreSpec
    seed : int
    size_bytes : int, optional
        Of the part, which begins the scratchpad; all of it if left out.
    rounds : int
        Before each the part is loaded anew.
    first : int
        The least of three semaphores that are used.
    """
    rng = random.Random(f"vectors {seed}")
    size = size_bytes or spec.scratchpad.size_bytes
    loaded, computed, stored = first, first + 1, first + 2
    instructions = []
    for number in range(rounds):
        load = {**_WHOLE, "memory": 0, "row_bytes": size}
        wait = (stored,) if number else ()
        instructions.append(Instruction(Opcode.LOAD, wait, (loaded,), body=load))
        ops = [random_op(rng, size, most=20) for _ in range(rng.randint(1, 5))]
        for index, op in enumerate(ops):
            wait = (loaded,) if index == 0 else ()
            signal = (computed,) if index == len(ops) - 1 else ()
            instructions.append(Instruction(Opcode.VECTOR, wait, signal, body=op.encoded()))
        store = {**_WHOLE, "memory": (number + 1) * size, "row_bytes": size}
        instructions.append(Instruction(Opcode.STORE, (computed,), (stored,), body=store))
    memory = np.zeros((rounds + 1) * size, np.uint8)
    memory[:size] = random_scratchpad(size, rng)
    return Program([*instructions, Instruction(Opcode.END, (stored,))], memory)


_WHOLE = {
    "scratchpad": 0, "rows": 0, "row_memory": 0, "row_scratchpad": 0, "planes": 0,
    "plane_memory": 0, "plane_scratchpad": 0,
}  # fmt: skip


def moved(item, engine, semaphores, memory, scratchpad):
    """An instruction on another engine, semaphores and addresses."""
    body = dict(item.body)
    if item.opcode in (Opcode.LOAD, Opcode.STORE):
        body["memory"] += memory
        body["scratchpad"] += scratchpad
    elif item.opcode == Opcode.GEMM:
        for name in ("a", "b", "result"):
            body[name] = {**body[name], "base": body[name]["base"] + scratchpad}
    elif item.opcode == Opcode.VECTOR:
        for name in ("x", "source_y", "target", "coefficients"):
            body[name] = {**body[name], "base": body[name]["base"] + scratchpad}
    return Instruction(
        item.opcode,
        tuple(number + semaphores for number in item.wait),
        tuple(number + semaphores for number in item.signal),
        engine if item.opcode == Opcode.GEMM else 0,
        body,
    )


def merged(spec, one, other, rng):
    """Two programs at the same time, each with an engine and half of the scratchpad."""
    half = spec.scratchpad.size_bytes // 2
    mine = one.instructions[:-1]
    theirs = [moved(item, 1, 8, one.memory.size, half) for item in other.instructions[:-1]]
    instructions = []
    while mine or theirs:
        share = len(mine) / (len(mine) + len(theirs))
        instructions.append((mine if rng.random() < share else theirs).pop(0))
    memory = np.concatenate([one.memory, other.memory])
    return Program([*instructions, Instruction(Opcode.END)], memory)


def back_to_back(program):
    """All loads, then all products without a semaphore between them, then all stores."""
    instructions = []
    parts = [
        [item for item in program.instructions if item.opcode == opcode]
        for opcode in (Opcode.LOAD, Opcode.GEMM, Opcode.STORE)
    ]
    for number, part in enumerate(parts):
        for index, item in enumerate(part):
            wait = (number - 1,) if number and index == 0 else ()
            signal = (number,) if number < 2 and index == len(part) - 1 else ()
            instructions.append(dataclasses.replace(item, wait=wait, signal=signal))
    return Program([*instructions, Instruction(Opcode.END)], program.memory)


def over_the_end(spec, element):
    """A product whose streamed vector begins at the scratchpad's end and goes on at address 0."""
    conv, cut = ConvSpec.linear(1, spec.cols, 32), Tiling(32, 1, 32)
    formats = Formats(element, element, BF16, BF16)
    ops = tuple(operations(conv, "forward", spec, cut, formats))
    half = 16 * element.element_bytes  # of the vector
    top = spec.scratchpad.size_bytes
    rings = Rings(Ring(top - 2 * half, 64, 1), Ring(0, 64, 1), Ring(top // 2, 64, 1))
    placed = place(conv, "forward", formats, TiledProduct(cut, ops, rings, spec, MemorySpec()))
    image = placed.image(random_operands(placed, 0))
    program = Program(placed.instructions, image[: placed.entry])
    (index,) = (i for i, item in enumerate(program.instructions) if item.opcode == Opcode.GEMM)
    return changed(program, index, a__base=top - half)


def may_run(instructions, failed, is_dispatch):
    """Instructions that may end although one never does."""
    queues = {}
    for index, item in enumerate(instructions[:-1]):
        if is_dispatch and index >= failed:
            break
        queues.setdefault((item.opcode, item.engine), []).append(index)
    counts = [0] * 16
    done = []
    moves = True
    while moves:
        moves = False
        for queue in queues.values():
            while queue and queue[0] != failed:
                item = instructions[queue[0]]
                if not all(counts[number] for number in item.wait):
                    break
                for number in item.wait:
                    counts[number] -= 1
                for number in item.signal:
                    counts[number] += 1
                done.append(queue.pop(0))
                moves = True
    return set(done)


def changed(program, index, **fields):
    """A program with other fields in the body of an instruction; ``a__base`` is of the group."""
    body = dict(program.instructions[index].body)
    for name, value in fields.items():
        group, _, inner = name.rpartition("__")
        if group:
            body[group] = {**body[group], inner: value}
        else:
            body[name] = value
    instructions = list(program.instructions)
    instructions[index] = dataclasses.replace(instructions[index], body=body)
    return Program(instructions, program.memory)


def patched(program, index, byte, value):
    """Its words with another byte in the header of an instruction."""
    words = bytearray(encode(program.instructions))
    words[64 * sum(item.words for item in program.instructions[:index]) + byte] = value
    return bytes(words)


def middle(program, opcode, wanted=lambda body: True):
    """Number of an instruction in the middle of those of a kind."""
    found = [
        index
        for index, item in enumerate(program.instructions)
        if item.opcode == opcode and wanted(item.body)
    ]
    return found[len(found) // 2]


def first_touching(program, opcode, address):
    """Number of the first transfer that touches the word at an address."""
    for index, item in enumerate(program.instructions):
        if item.opcode == opcode:
            for memory, _ in row_starts(item.body):
                first, size = words_of_row(memory, item.body["row_bytes"])
                if first <= address < first + size:
                    return index
    raise AssertionError

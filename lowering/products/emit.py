"""Generates a program from GEMM operations on tiles: slots on chip, loads, stores, semaphores.

The tiles of the streamed operand, of the stationary operand and of the results each have a ring of
slots of equal size. A tile that is still in its ring is not loaded again; a new tile replaces the
least recently used one. Semaphores say when a slot is full and when it is free, so that loads,
products and stores overlap as far as the slots allow.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.isa.shared_fields import SharedFields
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.products.conv_parts import Op
from fpgapipe.lowering.tiling.template import Template
from fpgapipe.lowering.tiling.tile import Tile


class Semaphore(IntEnum):
    """Numbers of the semaphores of a product's program."""

    A_FULL = 0
    A_FREE = 1
    B_FULL = 2
    B_FREE = 3
    RESULT_FULL = 4
    RESULT_FREE = 5


@dataclass(frozen=True)
class Ring:
    """Slots of equal size for the tiles of one operand or of the results.

    Parameters
    ----------
    base : int
        Byte address of the first slot in the scratchpad.
    slot_bytes, slots : int
        Bytes of a slot, and number of slots.
    """

    base: int
    slot_bytes: int
    slots: int

    def address(self, slot: int) -> int:
        """Byte address of a slot."""
        return self.base + slot * self.slot_bytes


@dataclass(frozen=True)
class Rings:
    """The rings of a program: streamed operand, stationary operand and results."""

    a: Ring
    b: Ring
    result: Ring

    def within(self, other: "Rings") -> bool:
        """Whether no ring has more slots than that of the other division."""
        return (
            self.a.slots <= other.a.slots
            and self.b.slots <= other.b.slots
            and self.result.slots <= other.result.slots
        )


@dataclass(frozen=True)
class _Use:
    """How an operation uses a tile in a ring."""

    slot: int
    loads: bool = False
    waits_free: bool = False
    frees: bool = False


def rings_of(
    ops: Sequence[Op], scratchpad: ScratchpadSpec, least_slots: int = 2
) -> Iterator[Rings]:
    """Yield all ways to divide the banks among three rings of at least `least_slots` slots each.

    A ring has fewer slots if it has fewer tiles. The two operands do not share a bank, since both
    are read at the same time. Only a scratchpad of a single bank has everything in that bank. If
    there are two banks, the results share that of the stationary operand. A ring of one slot is
    loaded when the product that used it is done.
    """
    tiles = [[getattr(op, name) for op in ops] for name in ("a", "b", "result")]
    sizes = [max(tile.size_bytes for tile in set(each)) for each in tiles]
    yield from rings_for(sizes, [len(set(each)) for each in tiles], scratchpad, least_slots)


def rings_for(
    sizes: Sequence[int],
    distinct: Sequence[int],
    scratchpad: ScratchpadSpec,
    least_slots: int = 2,
) -> Iterator[Rings]:
    """Yield what `rings_of` yields, given only the sizes and numbers of the tiles.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of the largest tile of each ring, in the order streamed, stationary, results.
    distinct : sequence of int
        Number of different tiles of each ring.
    scratchpad : ScratchpadSpec
    least_slots : int
    """
    slots_bytes = (max(sizes[0], WORD_BYTES), max(sizes[1], WORD_BYTES), sizes[2])
    needed = [
        size * min(least_slots, most) for size, most in zip(slots_bytes, distinct, strict=True)
    ]
    for regions in _regions(scratchpad):
        (_, a), (_, b), (_, result) = regions
        if needed[0] <= a and needed[1] <= b and needed[2] <= result:
            yield Rings(
                *(
                    Ring(base, size, min(room // size, number))
                    for (base, room), size, number in zip(
                        regions, slots_bytes, distinct, strict=True
                    )
                )
            )


def may_fit(sizes: Sequence[int], scratchpad: ScratchpadSpec) -> bool:
    """Whether tiles of these sizes (streamed, stationary, result) fit with one slot for each."""
    return any(
        all(size <= room for size, (_, room) in zip(sizes, regions, strict=True))
        for regions in _regions(scratchpad)
    )


@cache
def _regions(scratchpad: ScratchpadSpec) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Base and bytes of the parts of the rings, in the order of `Rings`, in all ways."""
    bank, banks = scratchpad.bank_bytes, scratchpad.banks
    if banks == 1:
        part = bank // 4
        return (
            ((0, part), (part, part), (2 * part, 2 * part)),
            ((0, 2 * part), (2 * part, part), (3 * part, part)),
            ((0, part), (part, 2 * part), (3 * part, part)),
        )
    if banks == 2:
        return tuple(
            ((0, bank), (bank, share), (bank + share, bank - share))
            for share in (bank // 4, bank // 2, 3 * bank // 4)
        )
    return tuple(
        ((0, a * bank), (a * bank, b * bank), ((a + b) * bank, (banks - a - b) * bank))
        for a in range(1, banks - 1)
        for b in range(1, banks - a)
        if banks <= 8 or not (a & (a - 1) or b & (b - 1))
    )


def _uses(tiles: Sequence[Tile | None], ring: Ring) -> list[_Use | None]:
    """How each operation uses a ring, in which a tile replaces the least recently used one."""
    found: list[_Use | None] = []
    slot_of: dict[Tile, int] = {}  # tiles now in the ring, the least recently used first
    last_use: dict[int, int] = {}  # last operation that used each slot
    for index, tile in enumerate(tiles):
        if tile is None:
            found.append(None)
            continue
        if not tile.run_bytes:
            found.append(_Use(0))  # only padding, which needs no slot
            continue
        if tile in slot_of:
            slot = slot_of.pop(tile)
            found.append(_Use(slot))
        elif len(slot_of) < ring.slots:
            slot = len(slot_of)
            found.append(_Use(slot, loads=True))
        else:
            # The least recently used tile is replaced, so slots become free in the order in which
            # they are filled again. That is necessary because a semaphore only counts.
            slot = slot_of.pop(next(iter(slot_of)))
            use = found[last_use[slot]]
            assert use is not None
            found[last_use[slot]] = replace(use, frees=True)
            found.append(_Use(slot, loads=True, waits_free=True))
        slot_of[tile] = slot
        last_use[slot] = index
    return found


def emit(ops: Sequence[Op], rings: Rings, tensors: Mapping[str, int]) -> Program:
    """Generate the program of some operations, including its END.

    Parameters
    ----------
    ops : sequence of Op
    rings : Rings
    tensors : mapping of str to int
        Byte address of each tensor in memory, a multiple of 64.
    """
    return template(ops, rings).placed(tensors)


def keeps_stationary(ops: Sequence[Op], rings: Rings) -> bool:
    """Whether all tiles of the stationary operand are on chip when the program ends."""
    return len({op.b for op in ops if op.b.run_bytes}) <= rings.b.slots


def template(ops: Sequence[Op], rings: Rings, *, is_repeat: bool = False) -> Template:
    """Generate the program of some operations, including its END, for any tensor addresses.

    Parameters
    ----------
    ops : sequence of Op
    rings : Rings
    is_repeat : bool
        Whether the program runs after one of the same operations and rings, with the same
        stationary operand, whose tiles are all on chip and are not loaded.
    """
    stationary = _uses([op.b for op in ops], rings.b)
    if is_repeat:
        assert keeps_stationary(ops, rings), "the tiles have been replaced by others"
        stationary = [use and replace(use, loads=False) for use in stationary]
    uses = {
        "a": _uses([op.a for op in ops], rings.a),
        "b": stationary,
        "result": _uses([op.result if op.last else None for op in ops], rings.result),
    }
    program: list[Instruction] = []
    tensors: list[str | None] = []
    for index, op in enumerate(ops):
        wait: list[int] = []
        signal: list[int] = []
        bases = {}
        for name, tile, full, free in (
            ("a", op.a, Semaphore.A_FULL, Semaphore.A_FREE),
            ("b", op.b, Semaphore.B_FULL, Semaphore.B_FREE),
        ):
            ring = getattr(rings, name)
            use = uses[name][index]
            assert use is not None
            bases[name] = ring.address(use.slot)
            if use.loads:
                waits = (int(free),) if use.waits_free else ()
                loads = list(_transfers(Opcode.LOAD, tile, bases[name], waits, (int(full),)))
                program += loads
                tensors += [tile.tensor] * len(loads)
                wait += [int(full)] * bool(loads)
            if use.frees:
                signal.append(int(free))
        target = uses["result"][index]
        if target:
            bases["result"] = rings.result.address(target.slot)
            if target.waits_free:
                wait.append(int(Semaphore.RESULT_FREE))
            signal.append(int(Semaphore.RESULT_FULL))
        program.append(_gemm(op, bases, tuple(wait), tuple(signal)))
        tensors.append(None)
        if target:
            stores = list(
                _transfers(
                    Opcode.STORE,
                    op.result,
                    bases["result"],
                    (int(Semaphore.RESULT_FULL),),
                    (int(Semaphore.RESULT_FREE),) if target.frees else (),
                )
            )
            program += stores
            tensors += [op.result.tensor] * len(stores)
    return Template([*program, Instruction(Opcode.END)], [*tensors, None])


def _transfers(
    opcode: Opcode,
    tile: Tile,
    slot: int,
    wait: tuple[int, ...],
    signal: tuple[int, ...],
) -> Iterator[Instruction]:
    """Transfers of a tile; the first one waits, and the last one signals."""
    bodies = list(tile.transfers(0, slot))
    for index, body in enumerate(bodies):
        yield Instruction(
            opcode,
            wait=wait if index == 0 else (),
            signal=signal if index == len(bodies) - 1 else (),
            body=body,
        )


def _gemm(
    op: Op, bases: Mapping[str, int], wait: tuple[int, ...], signal: tuple[int, ...]
) -> Instruction:
    body = {
        "extent": {
            "m": op.m - 1,
            "k": op.k - 1,
            "n": op.n - 1,
            "first": int(op.first),
            "last": int(op.last),
            "acc_base": 0,
            "acc_step": op.acc_step,
        },
        "a": op.a_pattern.encoded_at(bases["a"]),
        "b": op.b_pattern.encoded_at(bases["b"]),
        "result": op.result_pattern.encoded_at(bases.get("result", 0)),
    }
    return Instruction(Opcode.GEMM, wait=wait, signal=signal, body=SharedFields(body))

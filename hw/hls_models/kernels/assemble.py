"""Puts kernels together to a program."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.isa import Instruction, Opcode
from fpgapipe.hw.hls_models.kernels.kernel import Kernel

KERNEL_DONE = 10
"""Semaphore by which the last STORE of a kernel lets a later kernel begin."""

PAGE_BYTES = 4096
"""Tensors begin at multiples of this, so that their bursts cross no boundary they need not."""


@dataclass(frozen=True)
class Assembled:
    """A program of kernels.

    Attributes
    ----------
    instructions : list of Instruction
        END is the last.
    kernel_of : list of int
        For each instruction but END, the number of the kernel it belongs to.
    """

    instructions: list[Instruction]
    kernel_of: list[int]


def page(address: int) -> int:
    """Round up to a page."""
    return -(-address // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Placed:
    """A tensor's place in memory: its first byte and the byte behind its last."""

    begin: int
    end: int

    def overlaps(self, other: "Placed") -> bool:
        """Whether they share a byte."""
        return self.begin < other.end and other.begin < self.end


def assemble(kernels: Sequence[Kernel], places: Mapping[str, Placed]) -> Assembled:
    """Make one program of kernels, in their order.

    A kernel begins when the last kernel of its own track before it, and all that touch a tensor of
    its own, have written all they write. Loads and stores each end in the order of the program, so
    one wait for the latest of those is enough.
    """
    addresses = {name: place.begin for name, place in places.items()}
    tagged = [
        (number, instruction)
        for number, kernel in enumerate(kernels)
        for instruction in kernel.instructions(addresses)
    ]
    first_load: dict[int, int] = {}
    last_store: dict[int, int] = {}
    for at, (number, instruction) in enumerate(tagged):
        if instruction.opcode is Opcode.LOAD:
            first_load.setdefault(number, at)
        elif instruction.opcode is Opcode.STORE:
            last_store[number] = at
    instructions = [instruction for _, instruction in tagged]
    waited_for = -1
    for number in sorted(first_load, key=first_load.__getitem__):
        needed = [last_store[before] for before in _before(kernels, number, places)]
        latest = max(needed, default=-1)
        if latest <= waited_for:
            continue
        assert latest < first_load[number], "a kernel must stand behind what it waits for"
        waited_for = latest
        instructions[latest] = _with(instructions[latest], signal=KERNEL_DONE)
        begins = first_load[number]
        instructions[begins] = _with(instructions[begins], wait=KERNEL_DONE)
    end = Instruction(Opcode.END)
    return Assembled([*instructions, end], [number for number, _ in tagged])


def _before(kernels: Sequence[Kernel], number: int, places: Mapping[str, Placed]) -> list[int]:
    """Earlier kernels that a kernel has to wait for."""
    kernel = kernels[number]
    found = []
    for earlier, other in enumerate(kernels[:number]):
        if (
            other.track is kernel.track
            or _touch(other.writes, kernel.reads | kernel.writes, places)
            or _touch(other.reads, kernel.writes, places)
        ):
            found.append(earlier)
    return found


def _touch(some: Iterable[str], others: Iterable[str], places: Mapping[str, Placed]) -> bool:
    """Whether two sets of tensors have a byte in common."""
    return any(places[a].overlaps(places[b]) for a in some for b in others)


def _with(
    instruction: Instruction, wait: int | None = None, signal: int | None = None
) -> Instruction:
    """The instruction with one more semaphore."""
    return replace(
        instruction,
        wait=instruction.wait + (() if wait is None else (wait,)),
        signal=instruction.signal + (() if signal is None else (signal,)),
    )

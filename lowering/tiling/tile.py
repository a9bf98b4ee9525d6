"""Tiles: parts of tensors in the scratchpad, and the transfers that move them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES

_MAX_COUNT = 1 << 16


def ceil_word(size_bytes: int) -> int:
    """Round a size up to a multiple of a word of the scratchpad."""
    return -(-size_bytes // WORD_BYTES) * WORD_BYTES


@dataclass(frozen=True)
class Tile:
    """A part of a tensor: runs of bytes, repeated along some dimensions.

    The memory address and the scratchpad address of a run agree modulo 64, as transfers require.

    Parameters
    ----------
    tensor : str
        Name of the tensor.
    offset : int
        Bytes from the tensor's beginning, whose address is a multiple of 64, to the first element.
    run_bytes : int
        Bytes of a run, which are contiguous in memory.
    counts, memory_pitches, pitches : tuples of int
        For each dimension, the innermost first: the number of repetitions, and the distance in
        bytes from one to the next in memory and in the scratchpad.
    lead_bytes : int
        Bytes left free before the first element, a multiple of 64; a vector may begin in the
        padding before the element.
    """

    tensor: str
    offset: int
    run_bytes: int
    counts: tuple[int, ...]
    memory_pitches: tuple[int, ...]
    pitches: tuple[int, ...]
    lead_bytes: int = 0

    @property
    def shift(self) -> int:
        """Bytes from the beginning of the buffer to the first element."""
        return self.lead_bytes + self.offset % WORD_BYTES

    @property
    def span_bytes(self) -> int:
        """Bytes in the scratchpad from the first byte to the end of the last run."""
        steps = zip(self.counts, self.pitches, strict=True)
        return sum((count - 1) * pitch for count, pitch in steps) + self.run_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the scratchpad that the tile takes, in whole words."""
        return ceil_word(self.shift + self.span_bytes)

    @property
    def beats(self) -> int:
        """Words of 64 bytes that a transfer moves."""
        return sum(
            (ceil_word(body["memory"] % WORD_BYTES + body["row_bytes"]) // WORD_BYTES)
            * (body["rows"] + 1)
            * (body["planes"] + 1)
            for body in self.transfers(0, 0)
        )

    def transfers(self, memory_base: int, slot: int) -> Iterator[dict[str, Any]]:
        """Yield the bodies of the LOAD or STORE instructions that move the tile.

        Parameters
        ----------
        memory_base : int
            Byte address of the tensor.
        slot : int
            Byte address of the buffer in the scratchpad, a multiple of 64.
        """
        run = self.run_bytes
        if not run:
            return
        dims: list[tuple[int, int, int]] = []
        for count, memory, pitch in zip(
            self.counts, self.memory_pitches, self.pitches, strict=True
        ):
            if count == 1:
                continue
            if not dims and memory == pitch == run:
                run *= count
            elif (
                dims
                and (memory, pitch) == (dims[-1][0] * dims[-1][1], dims[-1][0] * dims[-1][2])
                and dims[-1][0] * count <= _MAX_COUNT
            ):
                dims[-1] = (dims[-1][0] * count, dims[-1][1], dims[-1][2])
            else:
                dims.append((count, memory, pitch))
        inner, outer = dims[:2], dims[2:]
        inner += [(1, 0, 0)] * (2 - len(inner))
        moves = [(0, 0)]
        for count, memory, pitch in outer:
            moves = [(m + i * memory, p + i * pitch) for m, p in moves for i in range(count)]
        for away, into in moves:
            yield {
                "memory": memory_base + self.offset + away,
                "scratchpad": slot + self.shift + into,
                "row_bytes": run,
                "rows": inner[0][0] - 1,
                "row_memory": inner[0][1],
                "row_scratchpad": inner[0][2],
                "planes": inner[1][0] - 1,
                "plane_memory": inner[1][1],
                "plane_scratchpad": inner[1][2],
            }


def tile_of(
    tensor: str,
    offset: int,
    run_bytes: int,
    dims: Sequence[tuple[int, int]],
    *,
    stored: bool = False,
    lead_bytes: int = 0,
) -> Tile:
    """Choose the pitches of a tile in the scratchpad.

    Parameters
    ----------
    tensor, offset, run_bytes
        As in `Tile`.
    dims : sequence of (count, bytes from one to the next in memory)
        Dimensions of the tile, the innermost first.
    stored : bool
        Whether the tile is stored to memory. A STORE writes exactly the tile's bytes. A LOAD moves
        whole words, so runs that are apart in memory must not share a word in the scratchpad.
    lead_bytes : int
        As in `Tile`.
    """
    span = run_bytes
    together = True  # whether the dimensions so far are as contiguous on chip as in memory
    counts: list[int] = []
    memories: list[int] = []
    pitches: list[int] = []
    for count, memory in dims:
        if together and memory == span:
            pitch = memory
        elif counts and memory == counts[-1] * memories[-1]:
            # This dimension continues the one inside it, in memory and on chip.
            pitch = counts[-1] * pitches[-1]
        elif stored:
            pitch = span + (memory - span) % WORD_BYTES
        elif memory % WORD_BYTES == 0:
            pitch = ceil_word(offset % WORD_BYTES + span)
        else:
            least = span + 2 * (WORD_BYTES - 1)
            pitch = least + (memory - least) % WORD_BYTES
        together = together and (count == 1 or pitch == memory == span)
        counts.append(count)
        memories.append(memory)
        pitches.append(pitch)
        span += (count - 1) * pitch
    return Tile(
        tensor, offset, run_bytes, tuple(counts), tuple(memories), tuple(pitches), lead_bytes
    )

"""Affine address patterns: how operands are read from the scratchpad and results are written to it.

A *loop nest* has three nested loops. Each step of a loop moves the byte address and two
coordinates, ``y`` and ``u``. Three loop nests, one inside the other, read an operand: `outer` (a
column of tiles), `tap` (a tile, or a group of columns) and `pos` (a vector, or an element of the
reduction). Elements whose coordinates are beyond the limits are read as zeros, so a convolution
with padding needs no copy of its input in any of its three passes; docs/core.md shows the loops of
each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.gemm_fields import NUM_LOOPS
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK

BLOCK = MX_BLOCK
"""Elements in a word that is read, the same number as in a block of MXINT8."""

COORDINATE_BITS = {"address": 32, "y": 16, "u": 24}
"""Widths of the two's complement numbers in which hardware keeps an operand's coordinates."""


@dataclass(frozen=True)
class Loop:
    """A loop: its number of iterations, and the distances by which each iteration moves.

    Parameters
    ----------
    count : int
        Number of iterations, 1 to 65,536.
    address : int
        Distance in the scratchpad, in bytes.
    y, u : int
        Distances of the coordinates; `u` is in elements.
    """

    count: int = 1
    address: int = 0
    y: int = 0
    u: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1 << 16:
            raise ValueError(f"loop count must be in 1..65536, not {self.count!r}")


@dataclass(frozen=True)
class LoopNest:
    """Three loops, the innermost first; missing ones have one iteration."""

    loops: tuple[Loop, ...] = ()

    def __post_init__(self) -> None:
        if len(self.loops) > NUM_LOOPS:
            raise ValueError(
                f"loop nest must have at most {NUM_LOOPS} loops, not {len(self.loops)}"
            )
        missing = NUM_LOOPS - len(self.loops)
        object.__setattr__(self, "loops", tuple(self.loops) + (Loop(),) * missing)

    @property
    def size(self) -> int:
        """Number of positions of the loop nest."""
        return int(np.prod([loop.count for loop in self.loops], dtype=np.int64))

    def offsets(self, name: str) -> NDArray[np.int64]:
        """Value of a coordinate (``address``, ``y`` or ``u``) at each position, beginning at 0."""
        total = np.zeros(1, np.int64)
        for loop in self.loops:
            steps = np.arange(loop.count, dtype=np.int64) * getattr(loop, name)
            total = (steps[:, None] + total).reshape(-1)
        return total

    def innermost_is_last(self) -> NDArray[np.bool_]:
        """Whether the innermost loop is in its last iteration, at each position."""
        count = self.loops[0].count
        last: NDArray[np.bool_] = np.arange(self.size) % count == count - 1
        return last

    def encoded(self) -> list[dict[str, int]]:
        """Fields of the instruction.

        When a loop steps, all loops inside it start again. Hardware does this with one addition:
        the encoded jump is the loop's own distance less the distance that the inner loops have
        moved.
        """
        fields = []
        address = y = u = 0
        for loop in self.loops:
            steps = loop.count - 1
            fields.append(
                {
                    "count": steps,
                    "address": loop.address - address,
                    "y": loop.y - y,
                    "u": loop.u - u,
                }
            )
            address, y, u = address + steps * loop.address, y + steps * loop.y, u + steps * loop.u
        return fields

    @classmethod
    def decoded(cls, fields: list[Mapping[str, int]]) -> "LoopNest":
        """Inverse of `encoded`."""
        loops = []
        moved = dict.fromkeys(("address", "y", "u"), 0)
        for values in fields:
            steps = {name: values.get(name, 0) + back for name, back in moved.items()}
            loop = Loop(values["count"] + 1, **steps)
            loops.append(loop)
            moved = {
                name: back + (loop.count - 1) * getattr(loop, name) for name, back in moved.items()
            }
        return cls(tuple(loops))


@dataclass(frozen=True)
class Words:
    """Words that an operand's pattern reads, in order.

    Attributes
    ----------
    address : int64 array, shape (words,)
        Byte address of the first element.
    lanes : bool array, shape (words, 32)
        Which elements are read; the others are zeros.
    sub : int64 array, shape (words,)
        Index of the part of the block that goes to the array.
    emit : int64 array, shape (words,)
        With `transposed`, the number of vectors that the word's group of 32 words gives.
    """

    address: NDArray[np.int64]
    lanes: NDArray[np.bool_]
    sub: NDArray[np.int64]
    emit: NDArray[np.int64]


class _Places(NamedTuple):
    """Words of an operand's loop nests, arrays of axes outer, block, tap and pos.

    Attributes
    ----------
    address, u : int64 array
        Byte address and first coordinate of each word.
    lanes : int64 array
        Number of elements that count.
    there : bool array
        Whether the word lies inside the limits, apart from those of `u`.
    emit : int64 array
        Number of columns of the word's square that are used.
    """

    address: NDArray[np.int64]
    u: NDArray[np.int64]
    lanes: NDArray[np.int64]
    there: NDArray[np.bool_]
    emit: NDArray[np.int64]


@dataclass(frozen=True)
class OperandPattern:
    """How an operand is read: words of 32 elements, in the order in which the array takes vectors.

    ``walks_blocks`` False (*sweep*)::

        for each position of outer:
            for each position of tap:
                for sub in range(subs):
                    for each position of pos: a word

    ``walks_blocks`` True, for a reduction along `pos` in blocks of 32::

        for each position of outer:
            for block in range(blocks):
                for sub in range(subs):
                    for each position of tap:
                        for i in range(32):
                            the word of pos number 32 * block + i, or zeros beyond the last one

    Element ``e`` of a word is read if ``0 <= y < y_limit``, ``0 <= u + e < u_limit`` and
    ``e < lanes``; it is zero otherwise. A word without such elements is zero without being read.

    Parameters
    ----------
    base : int
        Byte address in the scratchpad, even.
    outer, tap, pos : LoopNest
        The loop nests, the outermost first.
    y, u : int
        Coordinates of the first word.
    y_limit, u_limit : int
        Limits of the coordinates.
    lanes_last : int
        Value of `lanes` while the innermost loop of `tap` is in its last iteration, 1 to 32;
        `lanes` is 32 otherwise.
    lanes_by_outer : bool
        Whether the innermost loop of `outer`, not that of `tap`, decides about `lanes`.
    subs, subs_last : int
        Number of parts of a block, each of as many elements as the array has rows. `subs_last`
        holds while the innermost loop of `tap` is in its last iteration (sweep) or in the last
        block (walks_blocks).
    blocks : int
        Blocks of the reduction (walks_blocks).
    pos_start : (int, int)
        Iterations of the inner two loops of `pos` that are skipped at the start, so that `pos` can
        begin in the middle of a row and of the rows. `base`, `y` and `u` belong to the first
        position after them, and the skipped ones are not positions of `pos`.
    walks_blocks : bool
        Whether the operand is read in the second of the two orders above.
    transposed : bool
        Whether 32 words form a square, the columns of which are the vectors.
    emit, emit_last : int
        Number of columns of a square that are used, 1 to 32; `emit_last` holds while the innermost
        loop of `tap` is in its last iteration.
    fp32 : bool
        Whether elements are FP32 (four bytes); they are BF16 otherwise.
    """

    base: int
    outer: LoopNest = field(default_factory=LoopNest)
    tap: LoopNest = field(default_factory=LoopNest)
    pos: LoopNest = field(default_factory=LoopNest)
    y: int = 0
    u: int = 0
    y_limit: int = 1
    u_limit: int = BLOCK
    lanes_last: int = BLOCK
    lanes_by_outer: bool = False
    subs: int = 1
    subs_last: int = 1
    blocks: int = 1
    pos_start: tuple[int, int] = (0, 0)
    walks_blocks: bool = False
    transposed: bool = False
    emit: int = BLOCK
    emit_last: int = BLOCK
    fp32: bool = False

    def __post_init__(self) -> None:
        if self.base % 2:
            raise ValueError(f"operand base must be even, not {self.base}")
        for name in ("lanes_last", "emit", "emit_last", "subs", "subs_last"):
            if not 1 <= getattr(self, name) <= BLOCK:
                raise ValueError(f"operand {name} must be in 1..{BLOCK}, not {getattr(self, name)}")
        if not 1 <= self.blocks <= 1 << 16:
            raise ValueError(f"operand blocks must be in 1..65536, not {self.blocks}")
        for loop, start in zip(self.pos.loops, self.pos_start, strict=False):
            if not 0 <= start < loop.count:
                raise ValueError(
                    f"operand pos_start must lie in loops of {self.pos.loops[0].count} and "
                    f"{self.pos.loops[1].count} iterations, not be {self.pos_start}"
                )
        if self.transposed and not self.walks_blocks and self.pos.loops[0].count != BLOCK:
            raise ValueError(
                f"operand transposed in a sweep must have {BLOCK} iterations innermost, not "
                f"{self.pos.loops[0].count}"
            )
        if self.transposed and not self.walks_blocks and self.pos_start[0]:
            raise ValueError(
                "operand transposed in a sweep must start with a whole square, not at iteration "
                f"{self.pos_start[0]} of {BLOCK}"
            )

        for name, bits in COORDINATE_BITS.items():
            least, most = self._reach(name)
            limit = 1 << (bits - 1)
            if least < -limit or most >= limit:
                raise ValueError(
                    f"operand {name} must stay in {-limit}..{limit - 1} ({bits} bits), not reach "
                    f"{least if least < -limit else most}"
                )

    @cached_property
    def _encoded(self) -> dict[str, Any]:
        return self.encoded()

    def encoded_at(self, distance: int) -> dict[str, Any]:
        """Fields of the instruction for the pattern with its base moved by a distance.

        All results share the fields of the loop nests.

        Raises
        ------
        ValueError
            If the pattern does not fit its fields there.
        """
        least, most = self.reach_of_addresses
        limit = 1 << (COORDINATE_BITS["address"] - 1)
        if distance % 2 or least + distance < -limit or most + distance >= limit:
            replace(self, base=self.base + distance)  # which says what is wrong
        return {**self._encoded, "base": self.base + distance}

    @cached_property
    def reach_of_addresses(self) -> tuple[int, int]:
        """Smallest and largest address, including words that are not read."""
        return self._reach("address")

    def _reach(self, name: str) -> tuple[int, int]:
        """Smallest and largest value of a coordinate, including words that are not read."""
        least = self.base if name == "address" else getattr(self, name)
        for start, loop in zip(self.pos_start, self.pos.loops, strict=False):
            least -= start * getattr(loop, name)
        most = least
        for loop_nest in (self.outer, self.tap, self.pos):
            for loop in loop_nest.loops:
                moved = (loop.count - 1) * getattr(loop, name)
                if moved < 0:
                    least += moved
                else:
                    most += moved
        return least, most

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return 4 if self.fp32 else 2

    @property
    def positions(self) -> int:
        """Number of positions of `pos`, from the first one on."""
        return self.pos.size - self._first

    @property
    def _first(self) -> int:
        """Number of iterations of `pos` before its first position."""
        return self.pos_start[0] + self.pos_start[1] * self.pos.loops[0].count

    def words(self) -> Words:
        """All words, in order."""
        places = self._places()
        along = places.u[..., None] + np.arange(BLOCK)
        mask = (
            places.there[..., None]
            & (along >= 0)
            & (along < self.u_limit)
            & (np.arange(BLOCK) < places.lanes[..., None])
        )
        index, sub = self._order(places.address)
        return Words(
            places.address.reshape(-1)[index],
            mask.reshape(-1, BLOCK)[index],
            sub,
            places.emit.reshape(-1)[index],
        )

    def reads(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Address of each word, whether it has elements and is read, and `Words.emit`, in order."""
        places = self._places()
        used = places.there & (places.u < self.u_limit) & (places.u + places.lanes > 0)
        index, _ = self._order(places.address)
        address, emit = (each.reshape(-1)[index] for each in (places.address, places.emit))
        return address, used.reshape(-1)[index], emit

    def _places(self) -> "_Places":
        """Words of the loop nests, without those that other parts of a block read again."""
        outer, tap = self.outer, self.tap
        # Axes: outer, block, tap, pos. A sweep has one block; the parts of a block come later.
        if self.walks_blocks:
            number = np.arange(self.blocks * BLOCK).reshape(self.blocks, 1, BLOCK)
        else:
            number = np.arange(self.positions).reshape(1, 1, -1)
        there = number < self.positions
        number = np.minimum(number, self.positions - 1)

        def sums(name: str) -> NDArray[np.int64]:
            """Values of a coordinate, in an array of axes outer, block, tap and pos."""
            along = self.pos.offsets(name)[self._first :]
            total: NDArray[np.int64] = (
                outer.offsets(name)[:, None, None, None]
                + tap.offsets(name)[:, None]
                + (along - along[0])[number]
            )
            return total

        address = self.base + sums("address")
        y = self.y + sums("y")
        tap_last, outer_last = tap.innermost_is_last(), outer.innermost_is_last()
        last = outer_last[:, None, None, None] if self.lanes_by_outer else tap_last[:, None]
        lanes = np.broadcast_to(np.where(last, self.lanes_last, BLOCK), address.shape)
        emit = np.where(tap_last, self.emit_last, self.emit)[:, None]
        there = there & (y >= 0) & (y < self.y_limit)
        return _Places(
            address, self.u + sums("u"), lanes, there, np.broadcast_to(emit, address.shape)
        )

    def _order(self, address: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Place of each word among those of `_places`, in order, and its part of a block.

        Words are repeated for each part of a block, which is the loop around the taps of a block
        or, in a sweep, around the positions.
        """
        parts = []
        if self.walks_blocks:
            size = self.tap.size * BLOCK
            for block in range(self.blocks):
                words = block * size + np.arange(size)
                for sub in range(self.subs_last if block == self.blocks - 1 else self.subs):
                    parts.append(np.stack([words, np.full(size, sub)], axis=1))
        else:
            size = self.positions
            for tap, is_last in enumerate(self.tap.innermost_is_last()):
                words = tap * size + np.arange(size)
                for sub in range(self.subs_last if is_last else self.subs):
                    parts.append(np.stack([words, np.full(size, sub)], axis=1))
        order = np.concatenate(parts)
        count = len(address)
        first = np.arange(count)[:, None] * (address.size // count)
        return (first + order[:, 0]).reshape(-1), np.tile(order[:, 1], count)

    def vectors(
        self, scratchpad: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Read all vectors.

        Parameters
        ----------
        scratchpad : uint8 array
            Bytes of the scratchpad.

        Returns
        -------
        vectors : float32 array, shape (vectors, 32)
        sub : int64 array, shape (vectors,)
            Index of the part of each vector that goes to the array.

        Raises
        ------
        IndexError
            If a word that is read begins outside the scratchpad.
        """
        words = self.words()
        used = words.lanes.any(axis=1)
        span = BLOCK * self.element_bytes
        outside = used & ((words.address < 0) | (words.address >= scratchpad.size))
        if outside.any():
            raise IndexError(
                f"operand address must be in 0..{scratchpad.size - 1}, not "
                f"{words.address[outside][0]}"
            )
        at = np.where(used, words.address, 0)[:, None] + np.arange(span)
        raw = scratchpad[at % scratchpad.size]
        wide = raw.view("<u4") if self.fp32 else raw.view("<u2").astype(np.uint32) << 16
        values = np.where(words.lanes, wide, 0).astype(np.uint32)
        vectors = values.view(np.float32)
        if not self.transposed:
            return vectors, words.sub
        squares = vectors.reshape(-1, BLOCK, BLOCK).transpose(0, 2, 1)
        kept = np.arange(BLOCK) < words.emit.reshape(-1, BLOCK)[:, :1]
        subs = np.broadcast_to(words.sub.reshape(-1, BLOCK)[:, :1], kept.shape)
        return np.ascontiguousarray(squares[kept]), subs[kept]

    def encoded(self) -> dict[str, Any]:
        """Fields of the instruction (`fpgapipe.hw.hls_models.isa.gemm_fields.OPERAND`)."""
        return {
            "base": self.base,
            "y": self.y,
            "u": self.u,
            "y_limit": self.y_limit,
            "u_limit": self.u_limit,
            "lanes_last": self.lanes_last,
            "lanes_by_outer": int(self.lanes_by_outer),
            "emit": self.emit,
            "emit_last": self.emit_last,
            "subs": self.subs,
            "subs_last": self.subs_last,
            "blocks": self.blocks - 1,
            "pos0_left": self.pos.loops[0].count - 1 - self.pos_start[0],
            "pos1_left": self.pos.loops[1].count - 1 - self.pos_start[1],
            "walks_blocks": int(self.walks_blocks),
            "transposed": int(self.transposed),
            "fp32": int(self.fp32),
            "outer": self.outer.encoded(),
            "tap": self.tap.encoded(),
            "pos": self.pos.encoded(),
        }

    @classmethod
    def decoded(cls, fields: Mapping[str, Any]) -> "OperandPattern":
        """Inverse of `encoded`."""
        values = dict(fields)
        for name in ("outer", "tap", "pos"):
            values[name] = LoopNest.decoded(values[name])
        for name in ("lanes_by_outer", "walks_blocks", "transposed", "fp32"):
            values[name] = bool(values[name])
        values["blocks"] += 1
        values["pos_start"] = tuple(
            loop.count - 1 - values.pop(f"pos{k}_left")
            for k, loop in enumerate(values["pos"].loops[:2])
        )
        return cls(**values)


@dataclass(frozen=True)
class ResultPattern:
    """Where the results of a product are written.

    For each position of `outer`, and inside it for each position of `pos`, a vector of columns is
    written. Column ``c`` goes to the address plus ``c`` elements if ``0 <= u + c < u_limit``, where
    ``u`` is the coordinate of `outer` alone.

    Parameters
    ----------
    base : int
        Byte address in the scratchpad, a multiple of an element's bytes.
    outer, pos : LoopNest
        The two loop nests. Their `y` and the `u` of `pos` are not used.
    u_limit : int
        Limit of the coordinate `u`.
    fp32 : bool
        Whether elements are FP32 (four bytes); they are BF16 otherwise.
    """

    base: int
    outer: LoopNest = field(default_factory=LoopNest)
    pos: LoopNest = field(default_factory=LoopNest)
    u_limit: int = BLOCK
    fp32: bool = False

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return 4 if self.fp32 else 2

    def addresses(self) -> NDArray[np.int64]:
        """Byte address of column 0, shape (outer positions, pos positions)."""
        return self.base + self.outer.offsets("address")[:, None] + self.pos.offsets("address")

    def columns(self, cols: int) -> NDArray[np.bool_]:
        """Which columns are written, shape (outer positions, cols)."""
        along = self.outer.offsets("u")[:, None] + np.arange(cols)
        return (along >= 0) & (along < self.u_limit)

    def encoded(self) -> dict[str, Any]:
        """Fields of the instruction (`fpgapipe.hw.hls_models.isa.gemm_fields.RESULT`)."""
        outer = [{k: v for k, v in loop.items() if k != "y"} for loop in self.outer.encoded()]
        pos = [{k: loop[k] for k in ("count", "address")} for loop in self.pos.encoded()]
        return {
            "base": self.base,
            "u_limit": self.u_limit,
            "fp32": int(self.fp32),
            "outer": outer,
            "pos": pos,
        }

    @cached_property
    def _encoded(self) -> dict[str, Any]:
        return self.encoded()

    def encoded_at(self, distance: int) -> dict[str, Any]:
        """Fields of the instruction for the pattern with its base moved by a distance.

        All results share the fields of the loop nests.
        """
        return {**self._encoded, "base": self.base + distance}

    @classmethod
    def decoded(cls, fields: Mapping[str, Any]) -> "ResultPattern":
        """Inverse of `encoded`."""
        return cls(
            fields["base"],
            LoopNest.decoded(fields["outer"]),
            LoopNest.decoded(fields["pos"]),
            fields["u_limit"],
            bool(fields["fp32"]),
        )

"""The VECTOR instruction: what the vector engine is told to do.

A vector has 16 elements of FP32. One nest of six loops, numbered from the innermost, drives
everything: two sources X and Y that are read from the scratchpad, a target that is written to it,
and a counter. Per vector and lane, the engine computes::

    d = (-)X + (nothing | (-)Y | k0 | c0)
    p = d * (1 | d | Y | k1 | c1)
    s = p + (nothing | (-)Y | (-)Y*Y | (-)Y*k2 | (-)Y*c2)
    t = then if test else otherwise, each one of s, X, Y, k3, c3, 0
    r = initial + t, or the sum or the largest of t over the reduced loops
    o = function(r, or relu(r))

``c`` are constants. ``k`` are coefficients, vectors of FP32 that are read again for each iteration
of the outermost loop. The reduced loops lie around the `inner` loops and inside all others. Each
vector of the inner loops has a sum of its own, so there are at most `MAX_SUMS` at a time; the terms
of a sum are added in the order of the loops.

The test compares X, Y or s with Y, k3, c3 or the counter, or draws a random number. A stage that
has nothing to do adds -0 or multiplies by 1, which leaves its operand as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from math import prod
from typing import Any

import numpy as np

from fpgapipe.hw.hls_models.isa.vector_fields import (
    ADDRESS_BITS,
    COUNTER_BITS,
    NUM_COEFFICIENTS,
    NUM_CONSTANTS,
    NUM_VECTOR_LOOPS,
    U_BITS,
    Y_BITS,
    Format,
)
from fpgapipe.hw.hls_models.numerics.function import Function

LANES = 16
"""Elements of a vector. A core with fewer lanes takes several cycles per vector."""

MAX_SUMS = 64
"""Largest number of vectors of sums, or of maxima, that a reduction may have at a time."""

NUM_SCALARS = 16
"""Number of 32-bit scalar registers, which the host sets and constants may be taken from."""

VECTOR_BYTES = 4 * LANES


class Addend(IntEnum):
    """Operand that is added to X."""

    NOTHING = 0
    Y = 1
    COEFFICIENT = 2
    CONSTANT = 3


class Factor(IntEnum):
    """Factor by which the first sum is multiplied."""

    ONE = 0
    SELF = 1
    Y = 2
    COEFFICIENT = 3
    CONSTANT = 4


class Second(IntEnum):
    """Operand that is added to the product; Y times a factor."""

    NOTHING = 0
    Y = 1
    SQUARE = 2
    COEFFICIENT = 3
    CONSTANT = 4


class Outcome(IntFlag):
    """Results of comparing two numbers; zeros are equal, and NaN is unordered to anything."""

    LESS = 1
    EQUAL = 2
    GREATER = 4
    UNORDERED = 8


class Left(IntEnum):
    """Left side of a comparison."""

    X = 0
    Y = 1
    S = 2


class Right(IntEnum):
    """Right side of a comparison."""

    Y = 0
    COEFFICIENT = 1
    CONSTANT = 2
    COUNTER = 3


class Choice(IntEnum):
    """Values that the test chooses from."""

    S = 0
    X = 1
    Y = 2
    COEFFICIENT = 3
    CONSTANT = 4
    ZERO = 5


class Initial(IntEnum):
    """Initial value of a sum."""

    NOTHING = 0
    COEFFICIENT = 1
    CONSTANT = 2


Steps = tuple[int, ...]
"""Distance by which each loop moves a number, the innermost loop first; missing ones are 0."""


@dataclass(frozen=True)
class Source:
    """Where a vector is read: 16 consecutive elements, or one element for all lanes.

    A vector in MXINT8 is half a block; the address of its first half is the block's, and that of
    its second half is one more.

    Lane ``i`` is valid only if ``0 <= y < y_limit`` and ``0 <= u + i < u_limit``; the element of an
    invalid lane is +0 and is not read. With `broadcast`, the same rule holds, and all valid lanes
    have the element at the address.

    Parameters
    ----------
    base : int
        Byte address in the scratchpad; even, except for the second half of an MXINT8 block.
    steps, y_steps, u_steps : tuple of int
        Steps of the address, in bytes, and of the coordinates.
    y, u : int
        Coordinates of lane 0 of the first vector.
    y_limit, u_limit : int
        Limits of the coordinates.
    format : Format
        Format of the elements.
    broadcast : bool
        Whether all lanes have the same element; not possible with MXINT8.
    """

    base: int
    steps: Steps = ()
    y: int = 0
    u: int = 0
    y_steps: Steps = ()
    u_steps: Steps = ()
    y_limit: int = 1
    u_limit: int = LANES
    format: Format = Format.FP32
    broadcast: bool = False


@dataclass(frozen=True)
class Target:
    """Where results are written; the reduced loops must not move the target.

    Lane ``i`` is written if ``0 <= u + i < u_limit``.

    In MXINT8, two consecutive results form a block. Of the loops that are not reduced and have more
    than one iteration, the innermost must therefore have two iterations with a step of 1 byte; the
    base and all other steps are even. Invalid lanes are zeros in the block, and a block without
    valid lanes is not written.
    """

    base: int
    steps: Steps = ()
    u: int = 0
    u_steps: Steps = ()
    u_limit: int = LANES
    format: Format = Format.FP32


@dataclass(frozen=True)
class Coefficients:
    """Vectors of 16 FP32 numbers, `pitch` bytes apart; the outermost loop moves them by `step`."""

    base: int = 0
    pitch: int = VECTOR_BYTES
    step: int = 0
    number: int = 0


@dataclass(frozen=True)
class Constant:
    """A number: `value`, or what scalar register `register` holds when the instruction starts."""

    value: float = 0.0
    register: int | None = None


@dataclass(frozen=True)
class Counter:
    """A number in 0..255, computed modulo 256."""

    base: int = 0
    steps: Steps = ()


@dataclass(frozen=True)
class Random:
    """A random test, which is true with a probability of `threshold` in 65,536.

    The random bits are those of Threefry. For vector ``n`` of the instruction, the counter is
    ``(first + n, 0, 0, 0)`` and the key is in scalar registers ``key`` and ``key + 1``. Lane ``i``
    gets the 16 bits from bit ``16 * i`` on.
    """

    threshold: int = 0
    first: int = 0
    key: int = 0


@dataclass(frozen=True)
class VectorOp:
    """A VECTOR instruction.

    Parameters
    ----------
    counts : tuple of int
        Iterations of the loops, the innermost first; missing loops have one iteration.
    x : Source
        Source X.
    y : Source or None
        Source Y; None stands for zeros.
    target : Target
        Where the results are written.
    inner, reduced : int
        Number of loops inside the reduced ones, and number of reduced loops. If no loop is reduced,
        `inner` is 0.
    takes_maximum : bool
        Whether the reduction gives the largest element; it gives the sum otherwise. Invalid lanes
        of X take no part in either; the maximum of no elements is -inf. NaN is larger than any
        number, and a later NaN larger than an earlier one; of equal numbers the first is taken.
    gives_index : bool
        Whether the counter's value at the largest element is written (0 if there was none), in
        place of the element.
    negate_x, addend, negate_addend, factor, second, negate_second
        Operands of the stages in the module's formulas; `negate_addend` negates only Y.
    test : Random, or (Left, Outcome, Right), or None
        Test that chooses between `then` and `otherwise`; None always chooses `otherwise`.
    then, otherwise : Choice
        Value of ``t`` if the test is true, and if it is not.
    initial : Initial
        Value that is added to the first element of a sum, or to each element if no loop is reduced.
    relu : bool
        Whether numbers with the sign bit set become +0.
    function : Function or None
        Function that is applied last.
    constants : tuple of Constant
        ``c0``, ``c1``, ``c2``, ``c3`` and the constant of `initial`; missing ones are 0.
    coefficients : Coefficients
        Coefficients ``k0`` to ``k3``.
    counter : Counter
        The counter.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    counts: tuple[int, ...]
    x: Source
    target: Target
    y: Source | None = None
    inner: int = 0
    reduced: int = 0
    takes_maximum: bool = False
    gives_index: bool = False
    negate_x: bool = False
    addend: Addend = Addend.NOTHING
    negate_addend: bool = False
    factor: Factor = Factor.ONE
    second: Second = Second.NOTHING
    negate_second: bool = False
    test: "Random | tuple[Left, Outcome, Right] | None" = None
    then: Choice = Choice.S
    otherwise: Choice = Choice.S
    initial: Initial = Initial.NOTHING
    relu: bool = False
    function: Function | None = None
    constants: tuple[Constant, ...] = ()
    coefficients: Coefficients = field(default_factory=Coefficients)
    counter: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        missing = NUM_VECTOR_LOOPS - len(self.counts)
        if missing < 0:
            raise ValueError(
                f"vector instruction must have at most {NUM_VECTOR_LOOPS} loops, not "
                f"{len(self.counts)}"
            )
        object.__setattr__(self, "counts", tuple(self.counts) + (1,) * missing)
        for count in self.counts:
            if not 1 <= count <= 1 << 16:
                raise ValueError(f"vector loop count must be in 1..65536, not {count}")
        if not (self.inner >= 0 and 0 <= self.reduced <= NUM_VECTOR_LOOPS - self.inner):
            raise ValueError(
                f"vector inner and reduced loops must be at most {NUM_VECTOR_LOOPS}, not "
                f"{self.inner} and {self.reduced}"
            )
        if self.inner and not self.reduced:
            raise ValueError("vector inner loops must have reduced ones around them, not none")
        if self.reduced and prod(self.counts[: self.inner]) > MAX_SUMS:
            raise ValueError(
                f"vector inner loops must have at most {MAX_SUMS} iterations (sums at a time), not "
                f"{prod(self.counts[: self.inner])}"
            )
        if (self.takes_maximum or self.gives_index) and not (self.reduced and self.takes_maximum):
            raise ValueError("vector maximum and its index must have reduced loops")
        if self.takes_maximum and self.initial is not Initial.NOTHING:
            raise ValueError("vector maximum must have no initial value")
        for part in (self.x, self.y, self.target):
            if part and part.base % 2 and part.format is not Format.MXINT8:
                raise ValueError(f"vector address must be even, not {part.base}")
        for source in (self.x, self.y):
            if source and source.broadcast and source.format is Format.MXINT8:
                raise ValueError("vector source of MXINT8 must not be broadcast")
        for steps in (self.target.steps, self.target.u_steps):
            if any(steps[self.inner : self.inner + self.reduced]):
                raise ValueError("vector target must not move with reduced loops")
        if self.target.format is Format.MXINT8:
            self._check_blocks()
        if not 0 <= self.coefficients.number <= NUM_COEFFICIENTS:
            raise ValueError(
                f"vector coefficients must be 0..{NUM_COEFFICIENTS}, not {self.coefficients.number}"
            )
        if self.coefficients.number and self.inner + self.reduced == NUM_VECTOR_LOOPS:
            raise ValueError("vector coefficients must have an outermost loop that is not reduced")
        if len(self.constants) > NUM_CONSTANTS:
            raise ValueError(
                f"vector constants must be at most {NUM_CONSTANTS}, not {len(self.constants)}"
            )
        if isinstance(self.test, Random) and not 0 <= self.test.key < NUM_SCALARS - 1:
            raise ValueError(
                f"vector random key must be registers 0..{NUM_SCALARS - 2}, not {self.test.key}"
            )

    def _check_blocks(self) -> None:
        """Check that results come as halves of MXINT8 blocks."""
        steps = (*self.target.steps, *(0,) * NUM_VECTOR_LOOPS)
        reduced = range(self.inner, self.inner + self.reduced)
        turns = [
            (count, steps[loop])
            for loop, count in enumerate(self.counts)
            if count > 1 and loop not in reduced
        ]
        others = [self.target.base, *(step for _, step in turns[1:])]
        if turns[:1] != [(2, 1)] or any(number % 2 for number in others):
            raise ValueError(
                "vector target of MXINT8 must have an innermost loop over the halves of a block "
                f"(2 iterations, a step of 1 byte) and be even otherwise, not base "
                f"{self.target.base} and (count, step) of {turns}"
            )

    @property
    def has_blocks(self) -> bool:
        """Whether any source or the target is in MXINT8."""
        parts = (self.x, self.y, self.target)
        return any(part is not None and part.format is Format.MXINT8 for part in parts)

    @property
    def num_vectors(self) -> int:
        """Number of vectors that are read from a source."""
        return prod(self.counts)

    @property
    def num_results(self) -> int:
        """Number of vectors that are written."""
        reduced = self.counts[self.inner : self.inner + self.reduced]
        return self.num_vectors // prod(reduced)

    def encoded(self) -> dict[str, Any]:
        """Fields of the instruction (`fpgapipe.hw.hls_models.isa.vector_fields.VECTOR`)."""
        compared = self.test if isinstance(self.test, tuple) else (Left.X, Outcome(0), Right.Y)
        drawn = self.test if isinstance(self.test, Random) else Random()
        constants = (*self.constants, *(Constant(),) * NUM_CONSTANTS)[:NUM_CONSTANTS]
        return {
            "loops": [{"count": count - 1} for count in self.counts],
            "inner": self.inner,
            "reduced": self.reduced,
            "takes_maximum": int(self.takes_maximum),
            "uses_y": int(self.y is not None),
            "x": self._encoded_source(self.x),
            "source_y": self._encoded_source(self.y or Source(0)),
            "target": {
                "base": self.target.base,
                "u": self.target.u,
                "u_limit": self.target.u_limit,
                "format": int(self.target.format),
                "jumps": self._jumps(address=self.target.steps, u=self.target.u_steps),
            },
            "coefficients": {
                "base": self.coefficients.base,
                "pitch": self.coefficients.pitch,
                "step": self.coefficients.step,
                "number": self.coefficients.number,
            },
            "constants": [
                {
                    "value": int(np.float32(constant.value).view(np.uint32))
                    if constant.register is None
                    else constant.register,
                    "is_register": int(constant.register is not None),
                }
                for constant in constants
            ],
            "counter": {
                "base": self.counter.base % (1 << COUNTER_BITS),
                "jumps": [
                    {"step": jump["step"] % (1 << COUNTER_BITS)}
                    for jump in self._jumps(step=self.counter.steps)
                ],
            },
            "random": {"threshold": drawn.threshold, "first": drawn.first, "key": drawn.key},
            "negate_x": int(self.negate_x),
            "negate_addend": int(self.negate_addend),
            "addend": int(self.addend),
            "factor": int(self.factor),
            "negate_second": int(self.negate_second),
            "second": int(self.second),
            "is_random": int(isinstance(self.test, Random)),
            "outcomes": int(compared[1]),
            "left": int(compared[0]),
            "right": int(compared[2]),
            "then": int(self.then),
            "otherwise": int(self.otherwise),
            "initial": int(self.initial),
            "relu": int(self.relu),
            "function": int(self.function or 0),
            "gives_index": int(self.gives_index),
        }

    def _encoded_source(self, source: Source) -> dict[str, Any]:
        return {
            "base": source.base,
            "y": source.y,
            "u": source.u,
            "y_limit": source.y_limit,
            "u_limit": source.u_limit,
            "format": int(source.format),
            "broadcast": int(source.broadcast),
            "jumps": self._jumps(address=source.steps, y=source.y_steps, u=source.u_steps),
        }

    def _jumps(self, **steps: Steps) -> list[dict[str, int]]:
        """Distances that hardware adds when a loop steps and all loops inside it start again."""
        jumps: list[dict[str, int]] = [{} for _ in range(NUM_VECTOR_LOOPS)]
        for name, each in steps.items():
            moved = 0
            for loop, count in enumerate(self.counts):
                step = each[loop] if loop < len(each) else 0
                jumps[loop][name] = step - moved if count > 1 else 0
                moved += (count - 1) * step
        return jumps

    @classmethod
    def decoded(cls, fields: Mapping[str, Any]) -> "VectorOp":
        """Inverse of `encoded`; steps of loops with one iteration come back as 0."""
        counts = tuple(loop["count"] + 1 for loop in fields["loops"])

        def steps(jumps: Sequence[Mapping[str, int]], name: str, bits: int) -> Steps:
            found, moved = [], 0
            half = 1 << (bits - 1)
            for jump, count in zip(jumps, counts, strict=True):
                step = (jump[name] + moved + half) % (2 * half) - half if count > 1 else 0
                moved += (count - 1) * step
                found.append(step)
            return tuple(found)

        def source(part: Mapping[str, Any]) -> Source:
            return Source(
                base=part["base"],
                steps=steps(part["jumps"], "address", ADDRESS_BITS),
                y=part["y"],
                u=part["u"],
                y_steps=steps(part["jumps"], "y", Y_BITS),
                u_steps=steps(part["jumps"], "u", U_BITS),
                y_limit=part["y_limit"],
                u_limit=part["u_limit"],
                format=Format(part["format"]),
                broadcast=bool(part["broadcast"]),
            )

        part = fields["target"]
        test: Random | tuple[Left, Outcome, Right] | None
        if fields["is_random"]:
            test = Random(**fields["random"])
        elif fields["outcomes"]:
            test = (
                Left(fields["left"]),
                Outcome(fields["outcomes"]),
                Right(fields["right"]),
            )
        else:
            test = None
        return cls(
            counts=counts,
            x=source(fields["x"]),
            y=source(fields["source_y"]) if fields["uses_y"] else None,
            target=Target(
                base=part["base"],
                steps=steps(part["jumps"], "address", ADDRESS_BITS),
                u=part["u"],
                u_steps=steps(part["jumps"], "u", U_BITS),
                u_limit=part["u_limit"],
                format=Format(part["format"]),
            ),
            inner=fields["inner"],
            reduced=fields["reduced"],
            takes_maximum=bool(fields["takes_maximum"]),
            gives_index=bool(fields["gives_index"]),
            negate_x=bool(fields["negate_x"]),
            addend=Addend(fields["addend"]),
            negate_addend=bool(fields["negate_addend"]),
            factor=Factor(fields["factor"]),
            second=Second(fields["second"]),
            negate_second=bool(fields["negate_second"]),
            test=test,
            then=Choice(fields["then"]),
            otherwise=Choice(fields["otherwise"]),
            initial=Initial(fields["initial"]),
            relu=bool(fields["relu"]),
            function=Function(fields["function"]) if fields["function"] else None,
            constants=tuple(
                Constant(register=constant["value"] % NUM_SCALARS)
                if constant["is_register"]
                else Constant(float(np.asarray(constant["value"], np.uint32).view(np.float32)))
                for constant in fields["constants"]
            ),
            coefficients=Coefficients(**fields["coefficients"]),
            counter=Counter(
                fields["counter"]["base"],
                steps(fields["counter"]["jumps"], "step", COUNTER_BITS),
            ),
        )

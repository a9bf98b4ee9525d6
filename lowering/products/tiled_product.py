"""Finds the tiling with which a pass of a convolution runs fastest, using the cycle model."""

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, Prediction, predict
from fpgapipe.hw.hls_models.isa.address import BLOCK
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, NoRoom
from fpgapipe.lowering.products.conv import ConvSpec, Pass
from fpgapipe.lowering.products.conv_parts import Formats, Op, Tiling
from fpgapipe.lowering.products.conv_passes import operations
from fpgapipe.lowering.products.emit import Rings, keeps_stationary, may_fit, template
from fpgapipe.lowering.products.tiling_search import (
    INSTRUCTION_CYCLES,
    Estimate,
    Sketch,
    TilingSearch,
)
from fpgapipe.lowering.tiling.template import Template

FEW_OPERATIONS = 128
"""Tilings with more instructions are tried only if none with fewer instructions fits."""

MANY_OPERATIONS = 1 << 16

ENOUGH_OPERATIONS = 1 << 12
"""Tilings of more than `FEW_OPERATIONS` instructions are tried until they have so many together.

Those with the fewest instructions come first. The limit lets a search take seconds, not minutes.
"""

CLOSE_LOOKS = 4
"""Number of the most promising tilings that are timed by the cycle model."""

KEPT = 2 * CLOSE_LOOKS
"""Number of tilings among which these are nearly always found."""

_Choice = tuple[Estimate, Sketch, Rings]


@dataclass(frozen=True)
class TiledProduct:
    """A pass with the tiling that was found for it.

    Attributes
    ----------
    tiling : Tiling
        The tiling.
    ops : tuple of Op
        GEMM instructions, in order.
    rings : Rings
        Division of the scratchpad.
    core : CoreSpec
    memory : MemorySpec
    is_repeated : bool
        Whether the tiling was found for products that are repeated with one stationary operand.
    """

    tiling: Tiling
    ops: tuple[Op, ...]
    rings: Rings
    core: CoreSpec
    memory: MemorySpec
    is_repeated: bool = False

    def program(self, tensors: Mapping[str, int], *, is_repeat: bool = False) -> Program:
        """Return the program for tensors at these byte addresses, which are multiples of 64.

        With `is_repeat` it runs after itself, and the same stationary operand is still on chip.
        """
        return self.template(is_repeat=is_repeat).placed(tensors)

    def template(self, *, is_repeat: bool = False) -> Template:
        """Return the program for any tensors; see `program`."""
        return self._repeat_template if is_repeat else self._template

    @cached_property
    def prediction(self) -> Prediction:
        """Predicted run time of the program or, of a tiling for repeated products, of a repeat."""
        return self._predicted(is_repeat=self.is_repeated)

    @cached_property
    def loading_cycles(self) -> int:
        """Predicted cycles of the program that loads both operands."""
        run = self._predicted(is_repeat=False) if self.is_repeated else self.prediction
        return run.cycles

    def _predicted(self, *, is_repeat: bool) -> Prediction:
        tensors = dict.fromkeys(("x", "w", "y", "dx", "dy", "dw"), 0)
        alone = replace(self.core, links=())  # the product uses no links
        return predict(self.program(tensors, is_repeat=is_repeat), alone, self.memory)

    @cached_property
    def _template(self) -> Template:
        return template(self.ops, self.rings)

    @cached_property
    def _repeat_template(self) -> Template:
        return template(self.ops, self.rings, is_repeat=True)


@lru_cache(maxsize=1 << 12)
def tile_product(
    conv: ConvSpec,
    which: Pass,
    core: CoreSpec,
    formats: Formats,
    memory: MemorySpec,
    *,
    is_repeated: bool = False,
) -> TiledProduct:
    """Find a fast tiling of a pass.

    Parameters
    ----------
    conv, which, core, formats, memory
        The pass, and what it runs on.
    is_repeated : bool
        Whether the pass is repeated with the same stationary operand, which is to stay on chip as
        a whole; only tilings of few instructions are tried then.

    Raises
    ------
    NoRoom
        If no tiling fits the scratchpad and the accumulators.
    """
    weight_bytes = conv.cout * conv.taps * conv.cin * formats.w.element_bytes
    if is_repeated and weight_bytes > core.scratchpad.size_bytes:
        raise NoRoom(f"the weight of {conv} does not fit on this core")
    search = TilingSearch(conv, which, core, formats, memory)
    limit = FEW_OPERATIONS
    while limit <= (FEW_OPERATIONS if is_repeated else 8 * MANY_OPERATIONS):
        for kept in (KEPT, 0) if limit == FEW_OPERATIONS else (0,):
            choices, left_out = _choices(search, conv, which, limit, kept, is_repeated=is_repeated)
            found, seen = _best(
                choices, conv, which, core, formats, memory, is_repeated=is_repeated
            )
            if not left_out or seen <= kept:  # else one that is left out might come next
                break
        if found is not None:
            return found
        limit *= 8
    raise NoRoom(
        f"the {which} pass of {conv} needs more than the {core.scratchpad.size_bytes:,} bytes "
        f"of scratchpad or the {core.acc_depth:,} accumulators of this core, however it is "
        "cut; give the core more of them"
    )


def _choices(
    search: TilingSearch, conv: ConvSpec, which: Pass, limit: int, kept: int, *, is_repeated: bool
) -> tuple[list[_Choice], int]:
    """Tilings of up to so many instructions with their estimates, the fastest first.

    Tilings whose array alone takes as long as the first `kept` of these are left out, unless that
    is 0; their number comes with the others.
    """
    core, finer = search.core, limit // FEW_OPERATIONS
    numbered = [(_number(conv, which, core, c), c) for c in _tilings(conv, which, core, finer)]
    if finer > 1:
        numbered.sort(key=lambda each: each[0])
    choices: list[_Choice] = []
    first: list[float] = []  # estimates of the first `kept` choices
    made = left_out = 0  # numbers of operations, of tilings
    for number, tiling in numbered:
        if number > limit or (finer > 1 and choices and made > ENOUGH_OPERATIONS):
            continue
        try:
            if kept and len(first) == kept:
                work, num_ops = search.work(tiling)
                few = num_ops * CLOSE_LOOKS < ENOUGH_OPERATIONS
                if few and work + INSTRUCTION_CYCLES * num_ops >= first[-1]:
                    left_out += 1
                    continue
            sketch = search.sketch(tiling)
        except ValueError:
            continue  # the accumulators have no room for the sums
        if not may_fit(sketch.first_sizes, core.scratchpad):
            continue
        made += sketch.num_ops
        for rings in search.rings(sketch, least_slots=1 if finer > 64 else 2):
            if is_repeated and not search.keeps_stationary(sketch, rings):
                continue
            estimate = search.estimate(sketch, rings, is_repeat=is_repeated)
            choices.append((estimate, sketch, rings))
            insort(first, sum(estimate))
            del first[kept:]
    choices.sort(key=lambda choice: sum(choice[0]))
    return choices, left_out


def _best(
    choices: Sequence[_Choice],
    conv: ConvSpec,
    which: Pass,
    core: CoreSpec,
    formats: Formats,
    memory: MemorySpec,
    *,
    is_repeated: bool,
) -> tuple[TiledProduct | None, int]:
    """The fastest of the first choices by the cycle model, and how many choices were looked at.

    It is None if the core can run no choice. What it is estimated to cost other kernels is added to
    its cycles.
    """
    most = max((sketch.num_ops for _, sketch, _ in choices), default=1)
    left = min(CLOSE_LOOKS, 1 + ENOUGH_OPERATIONS // most)
    made: dict[Tiling, tuple[Op, ...] | None] = {}
    looks: list[tuple[TiledProduct, float]] = []
    for number, (estimate, sketch, rings) in enumerate(choices, 1):
        tiling = sketch.tiling
        if tiling not in made:
            try:
                made[tiling] = tuple(operations(conv, which, core, tiling, formats))
            except ValueError:
                made[tiling] = None  # a pattern needs a number that does not fit its field
        ops = made[tiling]
        if ops is None or (is_repeated and not keeps_stationary(ops, rings)):
            continue
        # The places of the rings do not affect the run time, and further slots make no loss.
        if not any(look.tiling == tiling and rings.within(look.rings) for look, _ in looks):
            found = TiledProduct(tiling, ops, rings, core, memory, is_repeated)
            looks.append((found, estimate.crowding))
        left -= 1
        if not left:
            seen = number
            break
    else:
        seen = len(choices) + KEPT  # more were wanted
    if len(looks) > 1:  # timing takes long
        looks.sort(key=lambda look: look[0].prediction.cycles + look[1])
    return (looks[0][0] if looks else None), seen


def _number(conv: ConvSpec, which: Pass, core: CoreSpec, tiling: Tiling) -> int:
    """Rough estimate of the number of instructions of a tiling."""
    positions = conv.batch * conv.oh * conv.ow
    if which == "weight":
        rows, columns, depth = conv.cout, conv.taps * -(-conv.cin // core.cols), positions
    elif which == "forward":
        rows, columns, depth = positions, -(-conv.cout // core.cols), conv.cin
    else:
        rows, columns, depth = conv.batch * conv.h * conv.w, -(-conv.cin // core.cols), conv.cout
    return -(-rows // tiling.m) * -(-columns // tiling.n_tiles) * -(-depth // tiling.k)


def _tilings(conv: ConvSpec, which: Pass, core: CoreSpec, finer: int) -> Iterator[Tiling]:
    """Tilings worth trying: coarse ones move the least data, fine ones start early.

    With `finer` above 1 they include tilings that need little of the scratchpad.
    """
    positions = conv.batch * conv.oh * conv.ow
    if which == "weight":
        rows, array_tiles, depth = conv.cout, conv.taps * -(-conv.cin // core.cols), positions
    elif which == "forward":
        rows, array_tiles, depth = positions, -(-conv.cout // core.cols), conv.cin
    else:
        rows = conv.batch * conv.h * conv.w // (conv.stride[0] * conv.stride[1])
        array_tiles, depth = -(-conv.cin // core.cols), conv.cout
    most = max(min(core.acc_depth, rows), 1)
    sizes = sorted({max(most >> shift, min(BLOCK, most)) for shift in range(5)}, reverse=True)
    shifts = range(5 if finer == 1 else array_tiles.bit_length())
    widths = sorted({max(-(-array_tiles >> shift), 1) for shift in shifts} | {1, 2})
    windows = (False, True) if which == "weight" and conv.taps > 1 and finer > 1 else (False,)
    for m in sizes:
        for n_tiles in widths:
            for k in _halves(depth, 8 * finer, more_than=BLOCK if finer == 1 else BLOCK - 1):
                for n_outer, own_window in product((False, True), windows):
                    yield Tiling(m, n_tiles, k, n_outer, own_window)


def _halves(size: int, most_parts: int, *, more_than: int) -> Iterator[int]:
    """The whole size, and the sizes of some finer divisions, which have more than so many."""
    yield size
    parts = 2
    while parts <= most_parts and size > more_than * parts:
        yield -(-size // parts)
        parts *= 2

"""Every operator of PyTorch along every axis of tensors of 1 to 5 axes, negative ones included."""

import itertools
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")
import torch.nn.functional as F  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402
from fpgapipe.network.frontends.torch.torch_registry import ATTEMPTS, HANDLERS  # noqa: E402

SIZES = (4, 2, 6, 2, 3)
AXES = {
    "dim", "dims", "axis", "axis0", "axis1", "dim0", "dim1", "start_dim", "end_dim", "source",
    "destination", "dimension",
}  # fmt: skip


def one(rank):
    """All axes of so many."""
    return [(axis,) for axis in range(-rank, rank)]


def new(rank):
    """All places of a further axis."""
    return one(rank + 1)


def two(rank):
    """All pairs of axes."""
    return list(itertools.product(range(-rank, rank), repeat=2))


def rising(rank):
    """All pairs of axes, the first not behind the second."""
    return [(a, b) for a, b in two(rank) if a % rank <= b % rank]


def unlike(rank):
    """Some pairs of unlike axes, as a list."""
    return [([a, b],) for a, b in two(rank) if a % rank != b % rank][::3]


def orders(rank):
    """Some orders of the axes, with negative ones among them."""
    some = list(itertools.permutations(range(rank)))[:: max(1, rank * rank // 2)]
    return [([a - rank * ((a + n) % 2) for n, a in enumerate(order)],) for order in some]


def even(rank):
    """Axes that have an even number of elements."""
    return [(axis,) for axis in range(-rank, rank) if SIZES[:rank][axis] % 2 == 0]


def first(x, axis):
    """The first two elements along an axis."""
    return x.index_select(axis, torch.tensor([1, 0, 1]))


def spread(name, x, axis, **settings):
    """The variance or the like; of two results, their product."""
    found = getattr(torch, name)(x, dim=[axis], **settings)
    return torch.mul(*found) if "mean" in name else found


SPREADS = ("var", "std", "var_mean", "std_mean")
RUNS = {
    **{f"{name}.dim": (even, partial(spread, name, unbiased=True)) for name in SPREADS},
    **{f"{name}.correction": (one, partial(spread, name, correction=0)) for name in SPREADS},
    "amin.default": (one, lambda x, a: x.amin(a)),
    "logsumexp.default": (unlike, lambda x, a: x.logsumexp(a)),
    "unfold.default": (even, lambda x, a: x.unfold(a, 2, 1)),
    "amax.default": (one, lambda x, a: x.amax(a)),
    "cat.default": (one, lambda x, a: torch.cat((x, 2 * x), a)),
    "chunk.default": (even, lambda x, a: torch.mul(*x.chunk(2, a))),
    "concat.default": (one, lambda x, a: torch.concat((x, 2 * x), a)),
    "flatten.using_ints": (rising, lambda x, a, b: x.flatten(a, b)),
    "flip.default": (unlike, lambda x, a: x.flip(a)),
    "glu.default": (even, lambda x, a: F.glu(x, a)),
    "index_select.default": (one, first),
    "linalg_vector_norm.default": (one, lambda x, a: torch.linalg.vector_norm(x, dim=a)),
    "log_softmax.int": (one, lambda x, a: F.log_softmax(x, a)),
    "mean.dim": (one, lambda x, a: x.mean(a, keepdim=True)),
    "moveaxis.int": (two, lambda x, a, b: x.moveaxis(a, b)),
    "moveaxis.intlist": (unlike, lambda x, a: x.moveaxis(a, a[::-1])),
    "movedim.int": (two, lambda x, a, b: x.movedim(a, b)),
    "movedim.intlist": (unlike, lambda x, a: x.movedim(a, a[::-1])),
    "narrow.default": (one, lambda x, a: x.narrow(a, -2, 1)),
    "norm.ScalarOpt_dim": (one, lambda x, a: torch.norm(x, 2, a)),
    "permute.default": (orders, lambda x, a: x.permute(a)),
    "repeat_interleave.self_int": (one, lambda x, a: x.repeat_interleave(2, a)),
    "roll.default": (one, lambda x, a: x.roll(1, a)),
    "select.int": (one, lambda x, a: x.select(a, -1)),
    "slice.Tensor": (one, lambda x, a: torch.ops.aten.slice.Tensor(x, a, -2, 9)),
    "softmax.int": (one, lambda x, a: F.softmax(x, a)),
    "split.Tensor": (even, lambda x, a: x.split(1, a)[1]),
    "split_with_sizes.default": (even, lambda x, a: x.split([1, x.shape[a] - 1], a)[1]),
    "squeeze.dim": (one, lambda x, a: x.narrow(a, 0, 1).squeeze(a)),
    "squeeze.dims": (unlike, lambda x, a: x.narrow(a[0], 0, 1).narrow(a[1], 0, 1).squeeze(a)),
    "stack.default": (new, lambda x, a: torch.stack((x, 2 * x), a)),
    "sum.dim_IntList": (unlike, lambda x, a: x.sum(a)),
    "swapaxes.default": (two, lambda x, a, b: x.swapaxes(a, b)),
    "swapdims.default": (two, lambda x, a, b: x.swapdims(a, b)),
    "transpose.int": (two, lambda x, a, b: x.transpose(a, b)),
    "unbind.int": (one, lambda x, a: x.unbind(a)[-1]),
    "unflatten.int": (even, lambda x, a: x.unflatten(a, (2, -1))),
    "unsqueeze.default": (new, lambda x, a: x.unsqueeze(a)),
}
"""For each operator, which axes it is given, and how it is called."""

WITHOUT = {"tile.default"}
"""Operators whose argument has the name of axes, but is none."""


class Along(torch.nn.Module):
    """The results of a function along some axes, each of another multiple of the input."""

    def __init__(self, run, axes):
        super().__init__()
        self.run, self.axes = run, axes
        self.factors = torch.nn.Parameter(torch.linspace(0.5, 2, len(axes)))

    def forward(self, x):
        return [
            self.run(x * factor, *axes)
            for factor, axes in zip(self.factors.unbind(), self.axes, strict=True)
        ]


def schema(name):
    operator, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, operator), overload)._schema


def test_every_operator_with_axes_is_here():
    """An operator that is accepted and has an argument for axes is among `RUNS`."""
    accepted = {name.removeprefix("aten.") for name in (*HANDLERS, *ATTEMPTS)}
    along = {
        name
        for name in accepted
        if not name.startswith("bitwise")
        and AXES.intersection(argument.name for argument in schema(name).arguments)
    }
    assert along - WITHOUT == set(RUNS)


@pytest.mark.parametrize("name", sorted(RUNS))
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_along_every_axis(name, rank):
    choices, run = RUNS[name]
    axes = choices(rank)
    if not axes:
        return
    torch.manual_seed(0)
    module = Along(run, axes[:: 1 + len(axes) // 20])
    graph = from_torch((module, torch.randn(SIZES[:rank])), name="axes")
    found = verify(graph, batches=1, modes=("training",))
    assert found.verified, found.reason


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_flattened_end_after_a_stack(rank):
    """Interleaved rotary embeddings."""

    def rotated(x):
        return x * 2 + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    shape = (4, 3, 2, 6)[-rank:]
    graph = from_torch((Along(rotated, [()]), torch.randn(shape)), name="rotary")
    assert verify(graph).verified
    assert next(iter(reversed(graph.layers.values()))).output.shape == shape

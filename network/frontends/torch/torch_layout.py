"""Translations of ATen operators that move, repeat or convert elements."""

from __future__ import annotations

import math

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.operators import (
    Cast,
    Concat,
    Detach,
    Expand,
    Flatten,
    MatMul,
    Reduce,
    Reshape,
    Slice,
    Split,
    Transpose,
)
from fpgapipe.network.operators.tensors import DType, normalise_axis


@handles(
    "contiguous.default",
    "clone.default",
    "alias.default",
    "lift_fresh_copy.default",
)
def _same(t: Translation, node: Node) -> None:
    t.give(node, t.layer(node["self"]))


@handles("detach.default", "detach_.default")
def _detach(t: Translation, node: Node) -> None:
    layer = t.layer(node["self"])
    if layer not in t.builder.inputs:
        layer = t.add(node.name, Detach(), layer)
    t.give(node, layer)


@handles("to.dtype", "_to_copy.default", "to.dtype_layout", "to.device")
def _to(t: Translation, node: Node) -> None:
    wanted = node.arguments.get("dtype")
    layer = t.layer(node["self"])
    if wanted is None or str(wanted).removeprefix("torch.") == t.tensor(node["self"]).dtype:
        t.give(node, layer)
        return
    try:
        dtype = DType(str(wanted).removeprefix("torch."))
    except ValueError:
        raise Unsupported(f"element type {wanted} is not supported") from None
    t.give(node, t.add(node.name, Cast(dtype), layer))


@handles("type_as.default")
def _type_as(t: Translation, node: Node) -> None:
    dtype = t.tensor(node["other"]).dtype
    layer = t.layer(node["self"])
    same = dtype == t.builder.tensor(layer).dtype
    t.give(node, layer if same else t.add(node.name, Cast(dtype), layer))


@handles("view.default", "reshape.default", "_unsafe_view.default")
def _reshape(t: Translation, node: Node) -> None:
    shape = node["size"] if "size" in node.arguments else node["shape"]
    x, operator = t.tensor(node["self"]), Reshape(tuple(shape))
    if operator.output([x]).shape == x.shape:
        t.give(node, t.layer(node["self"]))
    else:
        t.simple(node, operator)


@handles("flatten.using_ints")
def _flatten(t: Translation, node: Node) -> None:
    if not t.tensor(node["self"]).shape:
        t.simple(node, Reshape((1,)))
    else:
        t.simple(node, Flatten(node["start_dim"], node["end_dim"]))


@handles("unflatten.int")
def _unflatten(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dim"], len(shape))
    sizes = list(node["sizes"])
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = shape[axis] // rest
    t.simple(node, Reshape((*shape[:axis], *sizes, *shape[axis + 1 :])))


@handles("unsqueeze.default")
def _unsqueeze(t: Translation, node: Node) -> None:
    shape = list(t.tensor(node["self"]).shape)
    shape.insert(normalise_axis(node["dim"], len(shape) + 1), 1)
    t.simple(node, Reshape(tuple(shape)))


@handles("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axes = node.arguments.get("dim")
    axes = range(len(shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    gone = {normalise_axis(axis, len(shape)) for axis in axes}
    t.simple(node, Reshape(tuple(s for i, s in enumerate(shape) if i not in gone or s != 1)))


@handles("transpose.int", "swapaxes.default", "swapdims.default")
def _transpose(t: Translation, node: Node) -> None:
    order = list(range(len(t.tensor(node["self"]).shape)))
    names = ("axis0", "axis1") if "axis0" in node.arguments else ("dim0", "dim1")
    a, b = (normalise_axis(node[each], len(order)) for each in names)
    order[a], order[b] = order[b], order[a]
    t.simple(node, Transpose(tuple(order)))


@handles("permute.default")
def _permute(t: Translation, node: Node) -> None:
    t.simple(node, Transpose(tuple(axis % len(node["dims"]) for axis in node["dims"])))


@handles("t.default", "numpy_T.default")
def _t(t: Translation, node: Node) -> None:
    t.simple(node, Transpose(tuple(reversed(range(len(t.tensor(node["self"]).shape))))))


@handles("mT.default")
def _matrices_transposed(t: Translation, node: Node) -> None:
    *rest, one, two = range(len(t.tensor(node["self"]).shape))
    t.simple(node, Transpose((*rest, two, one)))


@handles("cat.default", "concat.default")
def _cat(t: Translation, node: Node) -> None:
    layers = [t.layer(each) for each in node["tensors"]]
    t.give(node, t.add(node.name, Concat(node["dim"]), *layers))


@handles("slice.Tensor")
def _slice(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dim"], len(shape))
    start, stop, _ = slice(node["start"], node["end"]).indices(shape[axis])
    if (start, stop, node["step"]) == (0, shape[axis], 1):
        t.give(node, t.layer(node["self"]))
    else:
        t.simple(node, Slice(axis, start, stop, node["step"]))


@handles("select.int")
def _select(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dim"], len(shape))
    index = normalise_axis(node["index"], shape[axis])
    layer = t.add(f"{node.name}.slice", Slice(axis, index, index + 1), t.layer(node["self"]))
    t.give(node, t.add(node.name, Reshape((*shape[:axis], *shape[axis + 1 :])), layer))


@handles("unbind.int")
def _unbind(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dim"], len(shape))
    result = Reshape((*shape[:axis], *shape[axis + 1 :]))
    pieces: list[str | None] = [None] * shape[axis]
    for i in range(shape[axis]):
        if not t.reads_result(node, i):
            continue
        piece = t.add(f"{node.name}.{i}.split", Split(axis, i, i + 1), t.layer(node["self"]))
        pieces[i] = t.add(f"{node.name}.{i}", result, piece)
    t.give(node, pieces)


@handles("stack.default")
def _stack(t: Translation, node: Node) -> None:
    pieces = node["tensors"]
    shape = list(t.tensor(pieces[0]).shape)
    axis = normalise_axis(node["dim"], len(shape) + 1)
    shape.insert(axis, 1)
    parts = [
        t.add(f"{node.name}.{i}", Reshape(tuple(shape)), t.layer(each))
        for i, each in enumerate(pieces)
    ]
    t.give(node, t.add(node.name, Concat(axis), *parts))


@handles("split.Tensor", "split_with_sizes.default", "chunk.default")
def _split(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dim"], len(shape))
    if "split_sizes" in node.arguments:
        sizes = list(node["split_sizes"])
    else:
        chunks = node.arguments.get("chunks")
        most = -(-shape[axis] // chunks) if chunks else node["split_size"]
        sizes = [min(most, shape[axis] - at) for at in range(0, shape[axis], most)]
    layers = []
    start = 0
    for i, size in enumerate(sizes):
        piece = Split(axis, start, start + size)
        layers.append(t.add(f"{node.name}.{i}", piece, t.layer(node["self"])))
        start += size
    t.give(node, layers)


@handles("expand.default")
def _expand(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    wanted = list(node["size"])
    offset = len(wanted) - len(shape)
    sizes = [shape[i - offset] if size == -1 else size for i, size in enumerate(wanted)]
    if tuple(sizes) == shape:
        t.give(node, t.layer(node["self"]))
    else:
        t.simple(node, Expand(tuple(sizes)))


@handles("expand_as.default")
def _expand_as(t: Translation, node: Node) -> None:
    shape, wanted = (t.tensor(node[each]).shape for each in ("self", "other"))
    if shape == wanted:
        t.give(node, t.layer(node["self"]))
    else:
        t.simple(node, Expand(wanted))


@handles("view_as.default", "reshape_as.default")
def _reshape_as(t: Translation, node: Node) -> None:
    t.simple(node, Reshape(t.tensor(node["other"]).shape))


@handles("roll.default")
def _roll(t: Translation, node: Node) -> None:
    """Each axis is cut in two, and the parts change places."""
    shape, layer = t.tensor(node["self"]).shape, t.layer(node["self"])
    axes = node.arguments.get("dims") or ()
    shifts = node["shifts"]
    if not axes:  # all elements as one row
        layer = t.add(f"{node.name}.row", Reshape((math.prod(shape),)), layer)
    sizes = shape if axes else (math.prod(shape),)
    for number, (axis, shift) in enumerate(zip(axes or (0,), shifts, strict=True)):
        along = normalise_axis(axis, len(sizes))
        cut = sizes[along] - shift % sizes[along] if sizes[along] else 0
        if cut in (0, sizes[along]):
            continue
        name = f"{node.name}.{number}"
        last = t.add(f"{name}.last", Slice(along, cut, sizes[along]), layer)
        first = t.add(f"{name}.first", Slice(along, 0, cut), layer)
        layer = t.add(name, Concat(along), last, first)
    t.give(node, layer if axes else t.add(node.name, Reshape(shape), layer))


@handles("einsum.default")
def _einsum(t: Translation, node: Node) -> None:
    """A sum of products of tensors: products of matrices between transpositions, one by one."""
    tensors, (terms, result) = node["tensors"], _terms(node["equation"])
    if any(len(set(each)) < len(each) for each in (*terms, result)):
        raise Unsupported(f"only each axis once in a tensor, not {node['equation']!r}")
    if len(tensors) != len(terms) or set(result) - set("".join(terms)):
        raise Unsupported(f"{node['equation']!r} does not fit {len(tensors)} tensors")
    sizes: dict[str, int] = {}
    for tensor, term in zip(tensors, terms, strict=True):
        for axis, size in zip(term, t.tensor(tensor).shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise Unsupported(f"axis {axis!r} has {sizes[axis]} and {size} elements")
    waiting = [(t.layer(tensor), list(term)) for tensor, term in zip(tensors, terms, strict=True)]
    for number, (layer, axes) in enumerate(waiting):
        elsewhere = {*result, *"".join(terms[:number] + terms[number + 1 :])}
        waiting[number] = _summed(t, f"{node.name}.{number}.sum", layer, axes, elsewhere)
    (layer, found), *others = waiting
    for number, (other, axes) in enumerate(others):
        last = number == len(others) - 1
        name = node.name if last else f"{node.name}.{number}"
        kept = {*result, *(axis for _, each in others[number + 1 :] for axis in each)}
        layer, found = _contracted(t, name, (layer, found), (other, axes), kept, result, sizes)
    t.give(node, _ordered(t, node.name, tuple(found.index(axis) for axis in result), layer))


def _summed(
    t: Translation, name: str, layer: str, term: list[str], kept: set[str]
) -> tuple[str, list[str]]:
    """A tensor, and its axes, after a sum over the axes that nothing else has."""
    gone = tuple(place for place, axis in enumerate(term) if axis not in kept)
    if gone:
        layer = t.add(name, Reduce("sum", gone, False), layer)
    return layer, [axis for axis in term if axis in kept]


def _contracted(
    t: Translation,
    name: str,
    first: tuple[str, list[str]],
    second: tuple[str, list[str]],
    kept: set[str],
    result: str,
    sizes: dict[str, int],
) -> tuple[str, list[str]]:
    """The product of two tensors, summed over the axes of both that are not kept, and its axes.

    Axes are in the order of the result, as far as that is possible.
    """
    one, other = first[1], second[1]
    summed = [each for each in one if each in other and each not in kept]
    batch, left, right = (
        sorted(each, key=result.find)
        for each in (
            [axis for axis in one if axis in other and axis in kept],
            [axis for axis in one if axis not in other],
            [axis for axis in other if axis not in one],
        )
    )

    def size_of(axes: list[str]) -> int:
        return math.prod(sizes[axis] for axis in axes)

    leading = tuple(sizes[axis] for axis in batch)
    matrices = []
    for number, ((layer, term), rows, columns) in enumerate(
        ((first, left, summed), (second, summed, right))
    ):
        order = tuple(term.index(axis) for axis in (*batch, *rows, *columns))
        layer = _ordered(t, f"{name}.{number}.order", order, layer)
        shape = (*leading, size_of(rows), size_of(columns))
        matrices.append(t.add(f"{name}.{number}.matrices", Reshape(shape), layer))
    layer = t.add(f"{name}.products", MatMul(), *matrices)
    found = [*batch, *left, *right]
    return t.add(f"{name}.axes", Reshape(tuple(sizes[axis] for axis in found)), layer), found


def _terms(equation: str) -> tuple[list[str], str]:
    """Axes of the tensors and of the result; without an arrow, the result has those read once."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    if "." in given:
        raise Unsupported(f"only axes with names, not {equation!r}")
    if not arrow:
        result = "".join(sorted(each for each in set(given) - {","} if given.count(each) == 1))
    return given.split(","), result


def _ordered(t: Translation, name: str, order: tuple[int, ...], layer: str) -> str:
    return layer if order == tuple(sorted(order)) else t.add(name, Transpose(order), layer)

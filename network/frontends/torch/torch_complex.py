"""Translations of ATen operators on complex numbers, which are pairs of real numbers.

A tensor of complex numbers is a layer with a last axis of two elements, the real and the imaginary
part, as ``torch.view_as_real`` shows it.
"""

from __future__ import annotations

from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.frontends.torch.torch_values import Pairs
from fpgapipe.network.operators import AxisMap, Binary, Concat, Expand, Reshape, Slice
from fpgapipe.network.operators.axis_map import selection
from fpgapipe.network.operators.tensors import broadcast

_SWAPPED = AxisMap(-1, selection((1, 0)))
_REAL_TWICE = AxisMap(-1, selection((0, 0)))
_IMAGINARY_TWICE = AxisMap(-1, (((1, -1.0),), ((1, 1.0),)))
"""The imaginary part twice, the first time negated."""


@handles("view_as_complex.default")
def _view_as_complex(t: Translation, node: Node) -> None:
    t.give(node, Pairs(t.layer(node["self"])))


@handles("view_as_real.default")
def _view_as_real(t: Translation, node: Node) -> None:
    t.give(node, _pairs(t, node["self"]))


@handles("complex.default", "polar.default")
def _complex(t: Translation, node: Node) -> None:
    """Real and imaginary parts that are joined, or are a magnitude times cosine and sine."""
    if "polar" in node.target:
        raise Unsupported("only of fixed angles, and not of computed ones")
    parts = [t.layer(node[each]) for each in ("real", "imag")]
    shapes = [t.builder.tensor(each).shape for each in parts]
    if shapes[0] != shapes[1]:
        raise Unsupported(f"parts of shapes {list(shapes[0])} and {list(shapes[1])}")
    parts = [
        t.add(f"{node.name}.{number}", Reshape((*shapes[0], 1)), each)
        for number, each in enumerate(parts)
    ]
    t.give(node, Pairs(t.add(node.name, Concat(-1), *parts)))


@handles("real.default", "imag.default")
def _part(t: Translation, node: Node) -> None:
    pairs, place = _pairs(t, node["self"]), int("imag" in node.target)
    layer = t.add(f"{node.name}.part", Slice(-1, place, place + 1), pairs)
    t.give(node, t.add(node.name, Reshape(t.builder.tensor(pairs).shape[:-1]), layer))


def of_pairs(t: Translation, node: Node) -> bool:
    """Translate a sum or product of complex numbers; return whether it is one."""
    operands = [node["self"], node.arguments.get("other")]
    if not any(_is_complex(t, each) for each in operands):
        return False
    function = node.target.split(".")[1].removesuffix("_")
    if function not in ("add", "sub", "mul") or node.arguments.get("alpha", 1) != 1:
        raise Unsupported("only sums and products of complex numbers")
    if not all(_is_complex(t, each) for each in operands):
        raise Unsupported("only of two complex numbers; scale the parts before they are joined")
    if function == "mul":
        layer = _product(t, node, *operands)
    else:
        layer = t.add(node.name, Binary(function), *(_pairs(t, each) for each in operands))
    t.give(node, Pairs(layer))
    return True


def _product(t: Translation, node: Node, one: Any, other: Any) -> str:
    """``(a + bi)(c + di)``, as ``(a, b) * (c, c) + (b, a) * (-d, d)``."""
    if _fixed(t, other) is None and _fixed(t, one) is not None:
        one, other = other, one
    left = _pairs(t, one)
    shape = t.builder.tensor(left).shape
    fixed = _fixed(t, other)
    if fixed is not None:
        wanted = broadcast([shape, (*fixed.shape, 2)])
        pairs = t.torch.view_as_real(fixed)
        twice = t.torch.stack((pairs[..., 0], pairs[..., 0]), -1)
        crossed = t.torch.stack((-pairs[..., 1], pairs[..., 1]), -1)
        # Factors are repeated here but for the samples, as far as they are those of all samples.
        inner = wanted[len(wanted) - max(len(wanted) - 1, fixed.ndim + 1) :]
        if len(inner) == len(wanted) and pairs.shape[0] == 1:
            inner = (1, *inner[1:])
        factors = [
            t.fixed(f"{node.name}.{name}", each.expand(inner).contiguous())
            for name, each in (("cosine", twice), ("sine", crossed))
        ]
    else:
        right = _pairs(t, other)
        wanted = broadcast([shape, t.builder.tensor(right).shape])
        factors = [
            t.add(f"{node.name}.real", _REAL_TWICE, right),
            t.add(f"{node.name}.imaginary", _IMAGINARY_TWICE, right),
        ]
    if shape != wanted:
        left = t.add(f"{node.name}.each", Expand(wanted), left)
    swapped = t.add(f"{node.name}.swapped", _SWAPPED, left)
    summands = [
        t.add(f"{node.name}.product{number}", Binary("mul"), pairs, factor)
        for number, (pairs, factor) in enumerate(zip((left, swapped), factors, strict=True))
    ]
    return t.add(node.name, Binary("add"), *summands)


def _fixed(t: Translation, node: Any) -> Any | None:
    """Fixed complex numbers; None if an argument is anything else."""
    known = t.known(node) if isinstance(node, t.torch.fx.Node) else None
    return known.resolve_conj() if known is not None and known.is_complex() else None


def _is_complex(t: Translation, node: Any) -> bool:
    return t.pairs(node) is not None or _fixed(t, node) is not None


def _pairs(t: Translation, node: Any) -> str:
    """The layer of the pairs of complex numbers."""
    found = t.pairs(node)
    if found is not None:
        return found.layer
    fixed = _fixed(t, node)
    if fixed is not None:
        return t.fixed(node.name, t.torch.view_as_real(fixed).contiguous())
    raise Unsupported("only of complex numbers")

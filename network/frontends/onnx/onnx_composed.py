"""Translations of ONNX operators that several layers compute together."""

from __future__ import annotations

from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.einsum import einsum
from fpgapipe.network.frontends.onnx.onnx_translation import Translation, handles, node_name
from fpgapipe.network.operators import Affine, Binary, Expand, Reshape, Transpose


@handles("Sum", "Mean")
def _sum(t: Translation, node: Any) -> None:
    """Add several tensors one after the other; a mean is then scaled."""
    layers, name = t.layers(node), node_name(node)
    is_mean = node.op_type == "Mean" and len(layers) > 1
    total = layers[0]
    for number, other in enumerate(layers[1:], 1):
        last = number == len(layers) - 1 and not is_mean
        total = t.add(name if last else f"{name}.{number}", Binary("add"), total, other)
    t.give(node, t.add(name, Affine(1 / len(layers)), total) if is_mean else total)


@handles("Einsum")
def _einsum(t: Translation, node: Any) -> None:
    equation = t.attributes(node)["equation"].decode()
    t.give(node, einsum(t.builder, node_name(node), equation, t.layers(node)))


@handles("Tile")
def _tile(t: Translation, node: Any) -> None:
    """Repeat along axes, each of which is split off for the time being."""
    counts = t.integers(node, 1, "repeats") or []
    shape = t.tensor(node.input[0]).shape
    if len(counts) != len(shape) or any(count < 1 for count in counts):
        raise Unsupported(f"repeats must be {len(shape)} numbers of at least 1, not {counts}")
    one: list[int] = []
    each: list[int] = []
    for count, size in zip(counts, shape, strict=True):
        one += [1, size] if count > 1 else [size]
        each += [count, size] if count > 1 else [size]
    layer, name = t.layer(node.input[0]), node_name(node)
    if one != each:
        layer = t.add(f"{name}.one", Reshape(tuple(one)), layer)
        layer = t.add(f"{name}.each", Expand(tuple(each)), layer)
        whole = tuple(count * size for count, size in zip(counts, shape, strict=True))
        layer = t.add(name, Reshape(whole), layer)
    t.give(node, layer)


@handles("DepthToSpace", "SpaceToDepth")
def _blocks(t: Translation, node: Any) -> None:
    """Channels become blocks of pixels, or blocks become channels."""
    attributes = t.attributes(node)
    size = attributes["blocksize"]
    samples, channels, height, width = t.tensor(node.input[0]).shape
    if node.op_type == "SpaceToDepth":
        height, width = height // size, width // size
        split = (samples, channels, height, size, width, size)
        order = (0, 3, 5, 1, 2, 4)
        whole = (samples, channels * size**2, height, width)
    else:
        channels //= size**2
        split = (samples, size, size, channels, height, width)
        order = (0, 3, 4, 1, 5, 2)
        if attributes.get("mode", b"DCR") == b"CRD":
            split = (samples, channels, size, size, height, width)
            order = (0, 1, 4, 2, 5, 3)
        whole = (samples, channels, height * size, width * size)
    name = node_name(node)
    layer = t.add(f"{name}.split", Reshape(split), t.layer(node.input[0]))
    layer = t.add(f"{name}.order", Transpose(order), layer)
    t.give(node, t.add(name, Reshape(whole), layer))

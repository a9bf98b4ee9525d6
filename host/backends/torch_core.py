"""A micro-batch in PyTorch with the core's number formats.

Layers are grouped into units as in a device's program. Operands of matrix products, in all three
passes, are MXINT8, and their sums have the core's order (`torch_mx`). Activations and their
gradients, which a device keeps in memory between its kernels, are rounded as on the device. All
else is FP32. The functions of the vector engine, which are accurate to about one ulp on the device,
are PyTorch's functions here, and its sums, such as those over positions, are in PyTorch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fpgapipe.host.backends.torch_convolutions import (
    convolved_volumes,
    depthwise,
    transposed_volumes,
)
from fpgapipe.host.backends.torch_mx import product_of, transposed_product_of
from fpgapipe.host.backends.torch_recurrent import recurrent
from fpgapipe.host.backends.torch_reference import arranged, run_layer_late, with_gradients_of
from fpgapipe.hw.hls_models.numerics.element_format import BF16, ElementFormat
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.shards.cuts import sizes_of
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layers.depthwise_unit import DepthwiseUnit
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.network_units import layouts_of, units_of
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.network.graph import Graph, Layer

Tensors = Mapping[str, torch.Tensor]

DISTURBANCE = 2.0**-18
"""Size of the disturbances of `CoreNumbers.noise`, relative to each value.

It is 32 steps of FP32: more than another order of a sum moves a value, so that a few disturbed
runs show the roundings to BF16 and MXINT8 that such a difference may turn over.
"""

TERM_DISTURBANCE = 2.0**-22
"""Size of the disturbance of a sum whose terms may cancel, relative to these terms.

Such sums are the gradients of the loss, and of the input of a normalisation."""


@dataclass(frozen=True)
class _Ran:
    """Record of a unit's forward pass, which its backward pass needs.

    Attributes
    ----------
    inputs : list of (str, tensor)
        Name and value of each input from outside the unit; one that is read twice is there twice.
    parameters : dict of str to tensor
        The learned parameters.
    result : tensor
        The result before it was rounded.
    """

    unit: Unit
    inputs: list[tuple[str, torch.Tensor]]
    parameters: dict[str, torch.Tensor]
    result: torch.Tensor


class CoreNumbers:
    """Runs micro-batches of a network with the core's number formats.

    Parameters
    ----------
    graph : Graph
    activations : ElementFormat
        Format of activations and their gradients in memory, BF16 or FP32.
    parts : mapping of str to (int, tuple of int), optional
        Products that are cut over devices, by layers' names: the axis of the weight, 0 for output
        and 1 for input channels, and the sizes of the parts. Each device rounds its summand of the
        result, or of the input's gradient.
    array_rows : mapping of str to sequence of int, optional
        From `fpgapipe.lowering.program.array_rows`, for the programs whose bits products are to
        have. Without them, arrays have 32 rows.

    Attributes
    ----------
    noise : torch.Generator or None
        Source of random disturbances of all activations and their gradients before they are
        rounded, which show how far the results depend on the last bits of FP32 sums; None for no
        disturbance.

    Raises
    ------
    UserError
        If the core does not run a layer.
    """

    def __init__(
        self,
        graph: Graph,
        activations: ElementFormat,
        parts: Mapping[str, tuple[int, tuple[int, ...]]] | None = None,
        array_rows: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.noise: torch.Generator | None = None
        self._parts = parts or {}
        self._array_rows = array_rows or {}
        self._graph = graph
        self._units = units_of(graph)
        self._layouts = layouts_of(graph, self._units)
        self._activations = activations

    def infer(self, weights: Tensors, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Compute the network's outputs, with the running averages in batch normalisation."""
        values, _ = self._forward(weights, inputs, {}, training=False)
        return {name: values[name] for name in self._graph.outputs}

    def train(
        self,
        weights: Tensors,
        inputs: Tensors,
        factors: Tensors,
        loss_of: Any,
        backward: Tensors | None = None,
    ) -> dict[str, torch.Tensor]:
        """Compute the gradients of the learned parameters; running averages are updated in place.

        Parameters
        ----------
        weights, inputs, factors : mapping of str to tensor
            Parameters; inputs of the network; factors by which the dropout layers multiply.
        loss_of : callable
            Function from all outputs of the network, in their order, to the loss.
        backward : mapping of str to tensor, optional
            Learned parameters that the backward pass uses in the place of those of the forward
            pass.
        """
        values, ran = self._forward(weights, inputs, factors, training=True, backward=backward)
        outputs = {name: values[name] for name in self._graph.outputs}
        terms = []
        if self.noise is not None:
            terms = _slopes(loss_of, [torch.zeros_like(each) for each in outputs.values()])
        given = _slopes(loss_of, outputs.values())  # last, since callers note the loss
        if self.noise is not None:
            # The gradient is a probability, or a value, less a target. Where it is nearly zero, it
            # has the rounding error of the target, as large as the gradient at zero outputs.
            given = [
                each + TERM_DISTURBANCE * term * _drawn(term, self.noise)
                for each, term in zip(given, terms, strict=True)
            ]
        return self._backward(
            ran, {name: [each] for name, each in zip(outputs, given, strict=True)}
        )

    def _feature(self, x: torch.Tensor) -> torch.Tensor:
        """Round to the format that activations and their gradients have in memory."""
        return self._stored(self._disturbed(x))

    def _stored(self, x: torch.Tensor) -> torch.Tensor:
        return _to_bf16(x) if self._activations is BF16 else x

    def _disturbed(self, x: torch.Tensor) -> torch.Tensor:
        """Move values at random, if there is `noise`; zeros and infinities stay as they are."""
        if self.noise is None:
            return x
        return x + x.nan_to_num(posinf=0.0, neginf=0.0) * (DISTURBANCE * _drawn(x, self.noise))

    def _disturb_sums(
        self, x: torch.Tensor, y: torch.Tensor, terms: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Disturb the gradient of a normalisation's input `x`, each row as a whole.

        Where the gradient of its result `y` is constant in a row, nothing but rounding errors of
        the row's mean is left.
        """
        sizes: list[torch.Tensor] = []

        def disturb(dx: torch.Tensor) -> torch.Tensor:
            size = sizes.pop()
            assert self.noise is not None, "hooks are set while there is noise"
            return dx + TERM_DISTURBANCE * size * _drawn(size, self.noise)

        y.register_hook(lambda dy: sizes.append(terms(dy)))
        x.register_hook(disturb)

    # ------------------------------------------------------------------ forward

    def _forward(
        self,
        weights: Tensors,
        inputs: Tensors,
        factors: Tensors,
        *,
        training: bool,
        backward: Tensors | None = None,
    ) -> tuple[dict[str, torch.Tensor], list[_Ran]]:
        values = {
            name: self._stored(value) if value.is_floating_point() else value
            for name, value in inputs.items()
        }
        ran = []
        for unit in self._units:
            each = self._run(unit, weights, values, factors, training=training, backward=backward)
            result = each.result.detach()
            values[unit.name] = (
                self._disturbed(result)
                if unit.name in self._graph.outputs
                else self._feature(result)
            )
            ran.append(each)
        return values, ran

    def _run(
        self,
        unit: Unit,
        weights: Tensors,
        values: Tensors,
        factors: Tensors,
        *,
        training: bool,
        backward: Tensors | None = None,
    ) -> _Ran:
        """Run the forward pass of a unit."""
        own: dict[str, torch.Tensor] = {}
        inputs: list[tuple[str, torch.Tensor]] = []
        parameters: dict[str, torch.Tensor] = {}
        result = torch.empty(0)
        with torch.set_grad_enabled(training):
            for layer in unit.layers:
                args = []
                carrying = self._graph.input_gradients(layer.name)
                for place, name in enumerate(layer.inputs):
                    if name not in own:
                        wanted = training and place in carrying
                        value = values[name].detach().requires_grad_(wanted)
                        inputs.append((name, value))
                        args.append(value)
                    else:
                        args.append(own[name])
                rows_of = self._array_rows
                array_rows = rows_of.get(layer.name) or rows_of.get(unit.name) or [MX_BLOCK]
                roles: dict[str, torch.Tensor] = {}
                late: dict[str, torch.Tensor | None] = {}
                for parameter in layer.parameters:
                    value = weights[parameter.name].detach()
                    late[parameter.spec.role] = None
                    if training and parameter.spec.trainable:
                        if backward is None:
                            leaf = value
                        else:
                            leaf = backward[parameter.name].detach()
                            late[parameter.spec.role] = arranged(parameter, leaf.requires_grad_())
                        parameters[parameter.name] = leaf.requires_grad_()
                    roles[parameter.spec.role] = arranged(parameter, value)
                is_product = isinstance(layer.operator, ops.Conv | ops.Linear)
                if isinstance(unit, DepthwiseUnit) and is_product:
                    result = depthwise(layer, args[0], roles, late)
                elif is_product:
                    layout = self._layouts.wanted[unit.name][layer.inputs[0]]
                    parts = self._parts.get(layer.name)
                    given = layout, parts, array_rows, self._feature
                    result = _product(layer, args[0], roles, *given)
                    if any(each is not None for each in late.values()):
                        others = roles | {role: x for role, x in late.items() if x is not None}
                        other = _product(layer, args[0], others, *given)
                        result = with_gradients_of(result, other)
                elif isinstance(layer.operator, ops.ConvTranspose):
                    result = _transposed(layer, args[0], roles, late, array_rows[0])
                elif isinstance(layer.operator, ops.Recurrent):
                    result = recurrent(layer, args, roles, late, self._feature, array_rows[0])
                elif isinstance(layer.operator, ops.Embedding):
                    result = _embedded(layer, args[0], roles, late, array_rows[0])
                elif isinstance(layer.operator, ops.Select):
                    result = _selected_entries(layer, args[0], array_rows[0])
                elif isinstance(layer.operator, ops.MatMul):
                    result = _matrices(args[0], args[1], array_rows[0])
                elif isinstance(layer.operator, ops.Dropout) and layer.name in factors:
                    result = args[0] * factors[layer.name]
                else:
                    if isinstance(layer.operator, ops.Activation) and len(unit.layers) > 1:
                        # The gradient of an activation function is rounded, since a device
                        # writes it to memory before it is used further.
                        args = [_RoundedGradient.apply(args[0], self._feature)]
                    seen, terms = args, None
                    if self.noise is not None and args and args[0].requires_grad:
                        terms = _cancelling_terms(layer, args[0], roles)
                        seen = [args[0].view_as(args[0]), *args[1:]]
                    result = run_layer_late(layer, roles, late, seen, training=training)
                    if terms is not None:
                        self._disturb_sums(seen[0], result, terms)
                    if isinstance(layer.operator, ops.Softmax):
                        stored = self._feature(result.detach())
                        result = _OfStored.apply(args[0], result.detach(), stored, layer.operator)
                own[layer.name] = result
        return _Ran(unit, inputs, parameters, result)

    # ------------------------------------------------------------------ backward

    def _backward(
        self, ran: list[_Ran], given: dict[str, list[torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        gradients: dict[str, torch.Tensor] = {}
        for each in reversed(ran):
            if each.unit.name not in given or not each.result.requires_grad:
                continue
            dy, *others = given[each.unit.name]
            if others and each.unit.name in self._graph.outputs:
                dy, *others = *others, dy  # the loss's gradient is added last
            for other in others:
                dy = self._feature(dy + other)
            wanted = [(name, x) for name, x in each.inputs if x.requires_grad]
            leaves = [x for _, x in wanted] + list(each.parameters.values())
            found = torch.autograd.grad(each.result, leaves, dy)
            for (name, _), dx in zip(wanted, found, strict=False):
                passes = each.unit.passes_gradient(name)
                dx = self._disturbed(dx) if passes else self._feature(dx)
                given.setdefault(name, []).append(dx)
            for name, dw in zip(each.parameters, found[len(wanted) :], strict=True):
                gradients[name] = gradients[name] + dw if name in gradients else dw
        return gradients


def _cancelling_terms(
    layer: Layer, x: torch.Tensor, roles: Tensors
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """For a normalisation, what makes its result's gradient the mean of each row's terms.

    Their difference from the mean is what the gradient of the input is computed of.
    """
    operator = layer.operator
    if isinstance(operator, ops.BatchNorm):
        axes = (0, *range(2, x.ndim))
    elif isinstance(operator, ops.LayerNorm):
        axes = tuple(range(x.ndim - operator.num_axes, x.ndim))
    else:
        return None
    x = x.detach()
    mean = x.mean(axes, keepdim=True) if getattr(operator, "centred", True) else 0
    deviation = ((x - mean).square().mean(axes, keepdim=True) + operator.epsilon).sqrt()
    scale = roles.get("weight", torch.ones((), device=x.device))
    if isinstance(operator, ops.BatchNorm) and scale.ndim:
        scale = scale.reshape(-1, *[1] * (x.ndim - 2))
    return lambda dy: (dy * scale).abs().mean(axes, keepdim=True) / deviation


class _RoundedGradient(torch.autograd.Function):  # type: ignore[misc]
    """The identity function, whose gradient is rounded."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounding: Any) -> torch.Tensor:
        ctx.rounding = rounding
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.rounding(dy), None


class _OfStored(torch.autograd.Function):  # type: ignore[misc]
    """A softmax, whose gradient is computed of the result as a device has it in memory.

    Called as ``_OfStored.apply(x, result, stored, operator)``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, y: torch.Tensor, stored: torch.Tensor, operator: ops.Softmax
    ) -> torch.Tensor:
        ctx.stored, ctx.operator = stored, operator
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, axis = ctx.stored, ctx.operator.axis
        if ctx.operator.log:
            dx = dy - y.exp() * dy.sum(axis, keepdim=True)
        else:
            dx = dy * y - y * (dy * y).sum(axis, keepdim=True)
        return dx, None, None, None


class _Rounded(torch.autograd.Function):  # type: ignore[misc]
    """Rounding, through which gradients go as they are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounding: Any) -> torch.Tensor:
        return rounding(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return dy, None


def _drawn(x: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """Normally distributed numbers of a tensor's shape."""
    return torch.randn(x.shape, generator=noise, device=x.device)


def _slopes(loss_of: Any, outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of a loss with respect to the outputs of a network."""
    leaves = [each.requires_grad_() for each in outputs]
    return list(torch.autograd.grad(loss_of(*leaves), leaves))


def _to_bf16(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest BF16, ties to even."""
    return x.to(torch.bfloat16).to(x.dtype)


def _product(
    layer: Layer,
    x: torch.Tensor,
    roles: Tensors,
    layout: Layout,
    parts: tuple[int, tuple[int, ...]] | None,
    array_rows: Sequence[int],
    rounding: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Compute a convolution or linear layer with its bias; each part has an array of its own."""
    weight, bias = roles["weight"], roles.get("bias")
    operator = layer.operator
    one = _convolved if isinstance(operator, ops.Conv) else _multiplied
    if isinstance(operator, ops.Conv) and operator.groups > 1:
        groups = operator.groups
        pairs = zip(x.chunk(groups, 1), weight.chunk(groups, 0), strict=True)
        y = torch.cat([one(layer, *some, layout, array_rows[0]) for some in pairs], 1)
    elif parts is None:
        y = one(layer, x, weight, layout, array_rows[0])
    elif parts[0] == 0:
        # Each part gives a summand of the input's gradient.
        y = torch.cat(
            [
                one(layer, _RoundedGradient.apply(x, rounding), some, layout, rows)
                for some, rows in zip(weight.split(parts[1], 0), cycle(array_rows), strict=False)
            ],
            1,
        )
    else:
        summands = [
            _Rounded.apply(one(layer, images, some, layout, rows), rounding)
            for images, some, rows in zip(
                x.split(parts[1], 1), weight.split(parts[1], 1), cycle(array_rows), strict=False
            )
        ]
        y = torch.cat(list(_scattered(summands, rounding)), 1)
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * (y.ndim - 2 if one is _convolved else 0))
    return y


def _transposed(
    layer: Layer,
    x: torch.Tensor,
    roles: Tensors,
    late: Mapping[str, torch.Tensor | None],
    array_rows: int,
) -> torch.Tensor:
    """Compute a transposed convolution with its bias; `late` are the weights of its gradients."""

    def with_weights(own: Tensors) -> torch.Tensor:
        operator = layer.operator
        assert isinstance(operator, ops.ConvTranspose)
        groups = zip(
            x.chunk(operator.groups, 1), own["weight"].chunk(operator.groups, 0), strict=True
        )
        y = torch.cat([of_group(*some) for some in groups], 1)
        return y if "bias" not in own else y + own["bias"].reshape(-1, *(1,) * (x.ndim - 2))

    def of_group(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.ndim > 4:
            return transposed_volumes(layer, images, weight, array_rows)
        if x.ndim == 3:  # signals are images of one row
            weight, images = weight.unsqueeze(2), images.unsqueeze(2)
        y = transposed_product_of(images, weight, conv_of(layer), array_rows)
        return y.reshape(len(y), y.shape[1], *layer.output.shape[2:])

    others = {role: each for role, each in late.items() if each is not None}
    result = with_weights(roles)
    return with_gradients_of(result, with_weights({**roles, **others})) if others else result


def _embedded(
    layer: Layer,
    indices: torch.Tensor,
    roles: Tensors,
    late: Mapping[str, torch.Tensor | None],
    array_rows: int,
) -> torch.Tensor:
    """Rows of a table as a product with rows that have a single one; `late` is as above."""
    operator = layer.operator
    assert isinstance(operator, ops.Embedding)
    flat = indices.long().flatten()
    rows = functional.one_hot(flat, operator.num_embeddings).float()
    table = roles["weight"] if late["weight"] is None else late["weight"]
    result = _selected(rows, roles["weight"], layer, array_rows)
    if table.requires_grad:
        learned = rows
        if operator.padding is not None:
            learned = rows * (flat != operator.padding).unsqueeze(1)
        result = with_gradients_of(result, _selected(learned, table, layer, array_rows))
    return result.reshape(layer.output.shape)


def _selected_entries(layer: Layer, x: torch.Tensor, array_rows: int) -> torch.Tensor:
    """Entries of a tensor as a product with rows that have a single one."""
    operator = layer.operator
    assert isinstance(operator, ops.Select)
    indices = torch.tensor(operator.indices, device=x.device)
    rows = functional.one_hot(indices, x.shape[0]).float()
    table = x.reshape(x.shape[0], -1)
    return _selected(rows, table, layer, array_rows).reshape(layer.output.shape)


def _selected(
    rows: torch.Tensor, table: torch.Tensor, layer: Layer, array_rows: int
) -> torch.Tensor:
    """The product of rows with a single one and a table."""
    conv = conv_of(layer)
    product = transposed_product_of(rows[..., None, None], table[..., None, None], conv, array_rows)
    return product.flatten(1)


def _scattered(
    summands: Sequence[torch.Tensor], rounding: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Sums over devices, a part of the channels on each, in the order of `collectives`."""

    def added(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return _Rounded.apply(one + other, rounding)

    sizes = sizes_of(summands[0].shape[1], len(summands))
    pieces = [each.split(sizes, 1) for each in summands]
    for number in range(len(summands)):
        piece = [each[number] for each in pieces]
        total = reduce(added, piece[: number + 1])
        if behind := piece[:number:-1]:
            total = added(total, reduce(added, behind))
        yield total


def _matrices(one: torch.Tensor, other: torch.Tensor, array_rows: int) -> torch.Tensor:
    """Products of matrices, each a linear layer whose weight is the second operand."""
    conv = ConvSpec.linear(one.shape[-2], other.shape[-1], one.shape[-1])
    turned = other.transpose(-1, -2)
    found = [
        product_of(a[..., None, None], b[..., None, None], conv, array_rows)
        for a, b in zip(
            one.reshape(-1, *one.shape[-2:]), turned.reshape(-1, *turned.shape[-2:]), strict=True
        )
    ]
    return torch.stack(found).reshape(*one.shape[:-1], other.shape[-1])


def _convolved(
    layer: Layer, x: torch.Tensor, weight: torch.Tensor, _: Layout, array_rows: int
) -> torch.Tensor:
    """A convolution with all channels or some of them."""
    if x.ndim > 4:
        return convolved_volumes(layer, x, weight, array_rows)
    conv = replace(conv_of(layer), cin=x.shape[1], cout=weight.shape[0])
    # A one-dimensional convolution is computed on images of one row.
    rows = x.unsqueeze(2) if x.ndim == 3 else x
    y = product_of(rows, weight.unsqueeze(2) if x.ndim == 3 else weight, conv, array_rows)
    shape = layer.output.shape
    return y.reshape(shape[0], conv.cout, *shape[2:])


def _multiplied(
    layer: Layer, x: torch.Tensor, weight: torch.Tensor, layout: Layout, array_rows: int
) -> torch.Tensor:
    """A linear layer with all features or some of them."""
    width = x.shape[-1]
    conv = replace(conv_of(layer), cin=width, cout=weight.shape[0])
    # Features are reordered to their layout in memory, along which the blocks lie.
    if width < layer.input_tensors[0].shape[-1] and layout != PLAIN:
        layout = Layout(width // layout.positions, layout.positions)
    sizes, axes = layout.split(width)
    rows, columns = (
        each.reshape(-1, *sizes).permute(0, *(1 + axis for axis in axes)).flatten(1)
        for each in (x, weight)
    )
    y = product_of(rows[..., None, None], columns[..., None, None], conv, array_rows)
    return y.reshape(*layer.output.shape[:-1], conv.cout)

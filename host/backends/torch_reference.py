"""Runs a graph in PyTorch, the reference with which every other backend is compared.

Each operator is computed by the function of PyTorch that defines it, in the types of the graph, on
the device where the inputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_integers import INTEGER_RUNS
from fpgapipe.network import operators as ops
from fpgapipe.network.frontends.torch.torch_contexts import normalised_plainly
from fpgapipe.network.graph import Graph, Layer, Parameter
from fpgapipe.network.operators.others import load_operators
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.network.operators.windows import Padding
from fpgapipe.optional import require
from fpgapipe.plugins import expected

if TYPE_CHECKING:
    import torch

Run = Callable[..., Any]

Weights = Mapping[str, "torch.Tensor"]
"""Values of parameters, by their names in the graph."""


def cuda_fault() -> str:
    """Say why torch cannot compute on a GPU; empty if it can."""
    torch = require("torch", "computing on a GPU")
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} does not see it"


def initial_weights(graph: Graph) -> dict[str, torch.Tensor]:
    """Return the values of a graph's parameters that its source had, as tensors.

    Raises
    ------
    UserError
        If the source had no value for some parameter, or torch is not installed.
    """
    torch = require("torch", "the PyTorch reference")
    names = [p.name for layer in graph.layers.values() for p in layer.parameters]
    missing = [name for name in names if name not in graph.values]
    if missing:
        raise UserError(f"{graph.name} comes without values for {', '.join(missing[:5])}")
    import numpy as np

    return {name: torch.from_numpy(np.array(graph.values[name])) for name in names}


def arranged(parameter: Parameter, value: torch.Tensor) -> torch.Tensor:
    """A parameter's values with the axes in the order in which a layer reads them."""
    return value.permute(parameter.order) if parameter.order else value


def forward(
    graph: Graph,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    *,
    training: bool = False,
    factors: Mapping[str, torch.Tensor] | None = None,
    backward: Weights | None = None,
) -> dict[str, torch.Tensor]:
    """Run the forward pass.

    Parameters
    ----------
    graph : Graph
    weights : mapping
        A tensor for every parameter.
    inputs : mapping
        A tensor for every network input.
    training : bool
        Whether batch normalisation uses the batch's statistics and dropout drops.
    factors : mapping, optional
        Factors by which the dropout layers multiply, by layer, instead of PyTorch's random ones.
    backward : mapping, optional
        Learned parameters that the backward pass uses in the place of those of the forward pass.

    Returns
    -------
    dict
        Every layer's output, by the layer's name.
    """
    results: dict[str, Any] = dict(inputs)
    backward = backward or {}
    for layer in graph.layers.values():
        own = {p.spec.role: arranged(p, weights[p.name]) for p in layer.parameters}
        args = [results[name] for name in layer.inputs]
        if factors and layer.name in factors:
            results[layer.name] = args[0] * factors[layer.name]
        else:
            late: dict[str, torch.Tensor | None] = {
                p.spec.role: arranged(p, backward[p.name]) if p.name in backward else None
                for p in layer.parameters
            }
            results[layer.name] = run_layer_late(layer, own, late, args, training=training)
    return {name: results[name] for name in graph.layers}


def gradients_of(
    graph: Graph,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    factors: Mapping[str, torch.Tensor],
    loss_of: Callable[..., torch.Tensor],
    *,
    autocast: AbstractContextManager[Any] | None = None,
    backward: Weights | None = None,
) -> dict[str, torch.Tensor]:
    """Compute the gradients of the learned parameters; running averages are updated in place.

    Parameters
    ----------
    graph, weights, inputs, factors
        Arguments of `forward`.
    loss_of : callable
        Function from all outputs of the network, in their order, to the loss.
    autocast : context manager, optional
        Context in which the forward pass runs.
    backward : mapping, optional
        Argument of `forward`.
    """
    import torch

    leaves = {
        p.name: (backward or weights)[p.name].detach().requires_grad_()
        for layer in graph.layers.values()
        for p in layer.parameters
        if p.spec.trainable
    }
    with autocast or nullcontext():
        own, late = ({**weights, **leaves}, None) if backward is None else (weights, leaves)
        values = forward(graph, own, inputs, training=True, factors=factors, backward=late)
    loss = loss_of(*(values[output] for output in graph.outputs))
    # A parameter that only a comparison reads, for example, has a gradient of zeros.
    found = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def computes(kind: type[ops.Operator]) -> Callable[[Run], Run]:
    """Register the decorated function as the reference of an operator of another package.

    It gets the operator, the layer's parameters by role, its inputs, and whether to compute as in
    training.

    Raises
    ------
    ValueError
        If the operator has a reference already.
    """

    def register(function: Run) -> Run:
        if kind in _RUNS:
            raise ValueError(f"operator {kind.kind!r} has a reference already")
        _RUNS[kind] = function
        return function

    return register


def run_layer(layer: Layer, own: Weights, args: list[torch.Tensor], *, training: bool) -> Any:
    """Compute a layer's result.

    Parameters
    ----------
    layer : Layer
    own : mapping
        Parameters of the layer, by role.
    args : list of tensor
        Inputs of the layer.
    training : bool
        Whether to compute as in training, see `forward`.
    """
    import torch

    load_operators()
    operator = layer.operator
    run = _RUNS.get(type(operator))
    if run is None:
        raise NotImplementedError(f"layer {layer.name!r}: the PyTorch reference has no {layer.op}")
    return expected(run(operator, own, args, training), (torch.Tensor, tuple), run)


def run_layer_late(
    layer: Layer,
    own: Weights,
    late: Mapping[str, torch.Tensor | None],
    args: list[torch.Tensor],
    *,
    training: bool,
) -> Any:
    """Compute a layer's result with some parameters, and its gradients with others.

    Parameters
    ----------
    layer, own, args, training
        As for `run_layer`.
    late : mapping of str to tensor or None
        Parameters that the backward pass uses, by role; None for those of `own`.
    """
    result = run_layer(layer, own, args, training=training)
    if all(value is None for value in late.values()):
        return result
    # What was computed with the other parameters counts for the gradients only. Its running
    # averages are lost.
    others = {role: own[role].clone() if late[role] is None else late[role] for role in own}
    return with_gradients_of(result, run_layer(layer, others, args, training=training))


def with_gradients_of(result: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A tensor with the values of one result and the gradients of another."""
    return result.detach() + (other - other.detach())


def _padded(x: torch.Tensor, padding: Padding, value: float = 0.0) -> torch.Tensor:
    from torch.nn import functional

    sides = [side for pair in reversed(padding) for side in pair]  # the last axis comes first
    return functional.pad(x, sides, value=value) if any(sides) else x


def _conv(o: ops.Conv, own: Weights, args: list[torch.Tensor], training: bool) -> torch.Tensor:
    import torch

    run: Any = (torch.conv1d, torch.conv2d, torch.conv3d)[len(o.kernel) - 1]
    x = _padded(args[0], o.padding)
    result: torch.Tensor = run(x, own["weight"], own.get("bias"), o.stride, 0, o.dilation, o.groups)
    return result


def _conv_transpose(
    o: ops.ConvTranspose, own: Weights, args: list[torch.Tensor], training: bool
) -> torch.Tensor:
    """The whole result of all windows, of which the padding is then cut off."""
    import torch
    from torch.nn import functional

    rank = len(o.kernel)
    run: Any = (
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
    )[rank - 1]
    whole = run(args[0], own["weight"], None, o.stride, 0, 0, o.groups, o.dilation)
    cut = [
        (-before, more - after)
        for (before, after), more in zip(o.padding, o.output_padding, strict=True)
    ]
    result = functional.pad(whole, [side for pair in reversed(cut) for side in pair])
    return result if "bias" not in own else result + own["bias"].reshape(-1, *(1,) * rank)


def _pool(o: ops.Pool, own: Weights, args: list[torch.Tensor], training: bool) -> torch.Tensor:
    """Pooling over windows that are gathered here, since PyTorch's has no one-sided padding."""
    import torch

    x = args[0]
    rank = len(o.kernel)
    counts = o.output([_tensor(x)]).shape[2:]
    padding = []
    for axis, (before, _) in enumerate(o.padding):
        reach = (counts[axis] - 1) * o.stride[axis] + (o.kernel[axis] - 1) * o.dilation[axis] + 1
        padding.append((before, max(reach - before - x.shape[2 + axis], 0)))
    exact = tuple(padding)
    fill = float("-inf") if o.function == "max" else 0.0

    def windows(x: torch.Tensor) -> torch.Tensor:
        for axis in range(rank):
            index = torch.arange(counts[axis], device=x.device)[:, None] * o.stride[axis]
            index = index + torch.arange(o.kernel[axis], device=x.device) * o.dilation[axis]
            x = x.index_select(2 + axis, index.reshape(-1))
            x = x.unflatten(2 + axis, (counts[axis], o.kernel[axis])).movedim(3 + axis, -1)
        return x.flatten(2 + rank)

    taken = windows(_padded(x, exact, fill))
    if o.function == "max":
        return taken.max(-1).values  # the first of equal values gets the gradient, as on the core
    # An average counts the data, the padding if `count_include_pad` says so, and never positions
    # beyond the padding.
    inside = tuple(
        (before, min(after, declared))
        for (before, after), (_, declared) in zip(exact, o.padding, strict=True)
    )
    beyond = tuple((0, after - kept) for (_, after), (_, kept) in zip(exact, inside, strict=True))
    ones = _padded(torch.ones_like(x), inside, float(o.count_include_pad))
    return taken.sum(-1) / windows(_padded(ones, beyond)).sum(-1)


def _tensor(x: torch.Tensor) -> Tensor:
    return Tensor(tuple(x.shape))


def _global_pool(o: ops.GlobalPool, own: Weights, args: list[Any], training: bool) -> Any:
    axes = tuple(range(2, args[0].ndim))
    if o.function == "average":
        return args[0].mean(axes, True)
    # The first of equal values gets the gradient, as on the core.
    return args[0].flatten(2).max(-1).values.reshape(*args[0].shape[:2], *(1 for _ in axes))


def _axis_map(o: ops.AxisMap, own: Weights, args: list[Any], training: bool) -> Any:
    x = args[0]
    if all(len(taps) == 1 and taps[0][1] == 1 for taps in o.taps):
        import torch

        index = torch.tensor([taps[0][0] for taps in o.taps], device=x.device)
        return x.index_select(o.axis, index)
    factors = x.new_zeros(len(o.taps), x.shape[o.axis])
    for row, taps in enumerate(o.taps):
        for index, factor in taps:
            factors[row, index] = factor
    return (x.movedim(o.axis, -1) @ factors.T).movedim(-1, o.axis)


def _upsample(o: ops.Upsample, own: Weights, args: list[Any], training: bool) -> Any:
    x = args[0]
    for axis, factor in enumerate(o.factors, 2):
        x = x.repeat_interleave(factor, axis)
    return x


def _recurrent(o: ops.Recurrent, own: Weights, args: list[Any], training: bool) -> Any:
    import torch

    x, *given = args
    shape = (o.num_directions, x.shape[0], o.hidden)
    states = [each.unflatten(1, (o.num_directions, o.hidden)).transpose(0, 1) for each in given]
    states = states or [x.new_zeros(shape) for _ in o.states]
    roles = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if o.bias else 2]
    suffixes = ("", "_reverse")[: o.num_directions]
    params = [own[role + suffix] for suffix in suffixes for role in roles]
    settings = (params, o.bias, 1, 0.0, training, o.bidirectional, True)
    if isinstance(o, ops.Gru):
        return torch.gru(x, states[0], *settings)[0]
    assert isinstance(o, ops.Lstm)
    y, _, cell = torch.lstm(x, states, *settings)
    if not o.final_cell:
        return y
    # Positions lie first in memory, as in PyTorch's own results: dropout draws in that order.
    cells = cell.transpose(0, 1).flatten(1)
    return torch.cat((y.transpose(0, 1), cells[None])).transpose(0, 1)


def _activation(o: ops.Activation, own: Weights, args: list[Any], training: bool) -> Any:
    from torch.nn import functional

    x = args[0]
    if o.function == "leaky_relu":
        return functional.leaky_relu(x, o.alpha)
    if o.function == "elu":
        return functional.elu(x, o.alpha)
    if o.function == "prelu":
        return functional.prelu(x, own["weight"])
    if o.function == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    run: Callable[[Any], Any] = getattr(functional, o.function)
    return run(x)


def _function(o: ops.Unary | ops.Binary, own: Weights, args: list[Any], training: bool) -> Any:
    import torch

    run: Callable[..., Any] = getattr(torch, o.function)
    return run(*args)


def _clamp(o: ops.Clamp, own: Weights, args: list[Any], training: bool) -> Any:
    from torch.nn import functional

    if not o.strict:
        return args[0].clamp(o.low, o.high)
    most = float("inf")
    low, high = -most if o.low is None else o.low, most if o.high is None else o.high
    return functional.hardtanh(args[0], low, high)


def _reduce(o: ops.Reduce, own: Weights, args: list[Any], training: bool) -> Any:
    names = {"mean": "mean", "sum": "sum", "max": "amax", "min": "amin"}
    return getattr(args[0], names[o.function])(o.axes, o.keep_axes)


def _batch_norm(o: ops.BatchNorm, own: Weights, args: list[Any], training: bool) -> Any:
    from torch.nn import functional

    return normalised_plainly(
        functional.batch_norm,
        args[0],
        own["running_mean"],
        own["running_var"],
        own.get("weight"),
        own.get("bias"),
        training,
        o.momentum,
        o.epsilon,
    )


def _layer_norm(o: ops.LayerNorm, own: Weights, args: list[Any], training: bool) -> Any:
    from torch.nn import functional

    shape = args[0].shape[-o.num_axes :]
    if o.centred:
        return functional.layer_norm(args[0], shape, own.get("weight"), own.get("bias"), o.epsilon)
    found = functional.rms_norm(args[0], shape, own.get("weight"), o.epsilon)
    return found + own["bias"] if "bias" in own else found


def _softmax(o: ops.Softmax, own: Weights, args: list[Any], training: bool) -> Any:
    import torch

    x = args[0]
    if o.causal:
        future = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        x = x.masked_fill(future, float("-inf"))
    if o.empty:
        # No gradient may become NaN on its way through such a row.
        nothing = (x == float("-inf")).all(o.axis, keepdim=True)
        return x.masked_fill(nothing, 0.0).softmax(o.axis).masked_fill(nothing, 0.0)
    return x.log_softmax(o.axis) if o.log else x.softmax(o.axis)


def _compare(o: ops.Compare, own: Weights, args: list[Any], training: bool) -> Any:
    import torch

    x = args[0]
    holds = getattr(torch, o.function)(x, o.number)
    numbers = torch.full_like(x, o.otherwise, dtype=None if x.is_floating_point() else torch.float)
    return numbers.masked_fill(holds, o.then)


def _masked_fill(o: ops.MaskedFill, own: Weights, args: list[Any], training: bool) -> Any:
    x, mask = args
    return x.masked_fill((mask == 0) if o.keeps else (mask != 0), o.value)


def _slice(o: ops.Slice, own: Weights, args: list[Any], training: bool) -> Any:
    index = [slice(None)] * args[0].ndim
    index[o.axis] = slice(o.start, o.stop, o.step)
    return args[0][tuple(index)]


def _local_response_norm(o: ops.LocalResponseNorm, own: Weights, args: list[Any], _: bool) -> Any:
    from torch.nn import functional

    x = args[0].flip(1) if o.upper else args[0]
    y = functional.local_response_norm(x, o.size, o.alpha, o.beta, o.bias)
    return y.flip(1) if o.upper else y


def _functional(name: str, *attributes: str) -> Callable[..., Any]:
    """Runner that calls a function of ``torch.nn.functional`` with some operator attributes."""

    def run(o: Any, own: Weights, args: list[Any], training: bool) -> Any:
        from torch.nn import functional

        function: Callable[..., Any] = getattr(functional, name)
        return function(*args, *(getattr(o, attribute) for attribute in attributes))

    return run


def _cast(o: ops.Cast, own: Weights, args: list[Any], training: bool) -> Any:
    import torch

    return args[0].to(getattr(torch, o.dtype.value))


def _dropout(o: ops.Dropout, own: Weights, args: list[Any], training: bool) -> Any:
    import torch
    from torch.nn import functional

    x = args[0]
    if not o.together or not training:
        return functional.dropout(x, o.rate, training)
    shape = [1 if axis in o.together else size for axis, size in enumerate(x.shape)]
    kept = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - o.rate)
    return x * kept.div_(1 - o.rate)


def _linear(o: ops.Linear, own: Weights, args: list[Any], training: bool) -> Any:
    from torch.nn import functional

    return functional.linear(args[0], own["weight"], own.get("bias"))


def _embedding(o: ops.Embedding, own: Weights, args: list[Any], training: bool) -> Any:
    from torch.nn import functional

    return functional.embedding(args[0].long(), own["weight"], o.padding)


def _select(o: ops.Select, own: Weights, args: list[Any], training: bool) -> Any:
    import torch

    return args[0].index_select(0, torch.tensor(o.indices, device=args[0].device))


def _concat(o: ops.Concat, own: Weights, args: list[Any], training: bool) -> Any:
    import torch

    return torch.cat(args, o.axis)


_RUNS: dict[type[ops.Operator], Callable[..., Any]] = {
    **INTEGER_RUNS,
    ops.Activation: _activation,
    ops.Affine: lambda o, own, args, training: args[0] * o.scale + o.offset,
    ops.AxisMap: _axis_map,
    ops.BatchNorm: _batch_norm,
    ops.Binary: _function,
    ops.Cast: _cast,
    ops.Clamp: _clamp,
    ops.Compare: _compare,
    ops.Concat: _concat,
    ops.Constant: lambda o, own, args, training: own["value"],
    ops.Conv: _conv,
    ops.ConvTranspose: _conv_transpose,
    ops.CrossEntropy: _functional("cross_entropy"),
    ops.Detach: lambda o, own, args, training: args[0].detach(),
    ops.Dropout: _dropout,
    ops.Embedding: _embedding,
    ops.Expand: lambda o, own, args, training: args[0].expand(o.output([_tensor(args[0])]).shape),
    ops.Flatten: lambda o, own, args, training: args[0].reshape(o.output([_tensor(args[0])]).shape),
    ops.Select: _select,
    ops.GlobalPool: _global_pool,
    ops.LayerNorm: _layer_norm,
    ops.Linear: _linear,
    ops.LocalResponseNorm: _local_response_norm,
    ops.Lstm: _recurrent,
    ops.Gru: _recurrent,
    ops.MaskedFill: _masked_fill,
    ops.MatMul: lambda o, own, args, training: args[0] @ args[1],
    ops.Pad: lambda o, own, args, training: _padded(args[0], o.padding, o.value),
    ops.Pool: _pool,
    ops.Power: lambda o, own, args, training: args[0] ** o.exponent,
    ops.Reduce: _reduce,
    ops.Reshape: lambda o, own, args, training: args[0].reshape(o.shape),
    ops.Slice: _slice,
    ops.Softmax: _softmax,
    ops.Split: _slice,
    ops.Transpose: lambda o, own, args, training: args[0].permute(o.order),
    ops.Unary: _function,
    ops.Upsample: _upsample,
}

"""A layer of long short-term memory in PyTorch with the core's number formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from fpgapipe.host.backends.torch_mx import convolved, input_gradient, weight_gradient
from fpgapipe.host.backends.torch_reference import with_gradients_of
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.network.graph import Layer

    Tensors = Mapping[str, torch.Tensor]

Rounding = Callable[[torch.Tensor], torch.Tensor]


def lstm(
    layer: Layer,
    x: torch.Tensor,
    roles: Tensors,
    late: Mapping[str, torch.Tensor | None],
    rounding: Rounding,
) -> torch.Tensor:
    """Compute a layer; `late` are the parameters of its gradients.

    Products are those of the core: of all inputs at once, and of the states of each position.
    Hidden states and the gradients of the gates' sums are rounded, since they lie in memory.
    """
    operator = layer.operator
    assert isinstance(operator, ops.Lstm)

    def with_parameters(own: Tensors) -> torch.Tensor:
        found = []
        for number, suffix in enumerate(("", "_reverse")[: operator.num_directions]):
            bias = x.new_zeros(4 * operator.hidden)
            if operator.bias:
                bias = own[f"bias_ih{suffix}"] + own[f"bias_hh{suffix}"]
            found.append(
                _Direction.apply(
                    x, own[f"weight_ih{suffix}"], own[f"weight_hh{suffix}"], bias, rounding, number
                )
            )
        return torch.cat(found, -1)

    others = {role: each for role, each in late.items() if each is not None}
    result = with_parameters(roles)
    return with_gradients_of(result, with_parameters({**roles, **others})) if others else result


class _Direction(torch.autograd.Function):  # type: ignore[misc]
    """One direction: from the first position to the last, or back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        of_inputs: torch.Tensor,
        of_states: torch.Tensor,
        bias: torch.Tensor,
        rounding: Rounding,
        number: int,
    ) -> torch.Tensor:
        samples, positions, features = x.shape
        hidden = of_states.shape[1]
        rows = x.transpose(0, 1).reshape(-1, features)
        sums = _product(rows, of_inputs).unflatten(0, (positions, samples))
        order = range(positions)[:: -1 if number else 1]
        state, cell = x.new_zeros(samples, hidden), x.new_zeros(samples, hidden)
        before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        gates: dict[int, torch.Tensor] = {}
        cells: dict[int, torch.Tensor] = {}
        states: dict[int, torch.Tensor] = {}
        for at in order:
            before[at] = state, cell
            total = sums[at] + _product(state, of_states) + bias
            i, f, g, o = total.chunk(4, 1)
            i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
            gates[at] = torch.cat((i, f, g, o), 1)
            cell = f * cell + i * g
            state = rounding(o * torch.tanh(cell))
            cells[at], states[at] = cell, state
        ctx.kept = rows, of_inputs, of_states, before, gates, cells, order, rounding
        return torch.stack([states[at] for at in range(positions)], 1)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, of_inputs, of_states, before, gates, cells, order, rounding = ctx.kept
        samples, positions, hidden = dy.shape
        dstate, dcell = dy.new_zeros(samples, hidden), dy.new_zeros(samples, hidden)
        found: dict[int, torch.Tensor] = {}
        for at in reversed(order):
            i, f, g, o = gates[at].chunk(4, 1)
            turned = torch.tanh(cells[at])
            dh = dy[:, at] + dstate
            dc = dh * o * (1 - turned * turned) + dcell
            found[at] = rounding(
                torch.cat(
                    (
                        dc * g * (i - i * i),
                        dc * before[at][1] * (f - f * f),
                        dc * i * (1 - g * g),
                        dh * turned * (o - o * o),
                    ),
                    1,
                )
            )
            dcell = dc * f
            dstate = _input_gradient(found[at], of_states)
        dgates = torch.cat([found[at] for at in range(positions)])
        states = torch.cat([before[at][0] for at in range(positions)])
        dx = _input_gradient(dgates, of_inputs).unflatten(0, (positions, samples))
        return (
            dx.transpose(0, 1),
            _weight_gradient(rows, dgates),
            _weight_gradient(states, dgates),
            dgates.sum(0),
            None,
            None,
        )


def _images(x: torch.Tensor) -> torch.Tensor:
    """A matrix as images of one pixel."""
    return x[..., None, None]


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    conv = ConvSpec.linear(len(x), *weight.shape)
    return convolved(_images(x), _images(weight), conv).flatten(1)


def _input_gradient(dy: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    conv = ConvSpec.linear(len(dy), *weight.shape)
    return input_gradient(_images(dy), _images(weight), conv).flatten(1)


def _weight_gradient(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    conv = ConvSpec.linear(len(x), dy.shape[1], x.shape[1])
    return weight_gradient(_images(x), _images(dy), conv).flatten(1)

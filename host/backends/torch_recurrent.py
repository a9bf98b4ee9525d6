"""A recurrent layer in PyTorch with the core's number formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
Several = tuple[torch.Tensor, ...]


def recurrent(
    layer: Layer,
    args: Sequence[torch.Tensor],
    roles: Tensors,
    late: Mapping[str, torch.Tensor | None],
    rounding: Rounding,
    array_rows: int,
) -> torch.Tensor:
    """Compute a layer; `late` are the parameters of its gradients.

    Products are those of the core: of all inputs at once, and of the states of each position.
    Hidden states and the gradients of the gates' products are rounded, since they lie in memory.
    """
    operator = layer.operator
    assert isinstance(operator, ops.Recurrent)
    x, *given = args

    def with_parameters(own: Tensors) -> torch.Tensor:
        found, cells = [], []
        for number, suffix in enumerate(("", "_reverse")[: operator.num_directions]):
            biases = [x.new_zeros(operator.gates * operator.hidden)] * 2
            if operator.bias:
                biases = [own[f"bias_{which}{suffix}"] for which in ("ih", "hh")]
            states = [each.chunk(operator.num_directions, 1)[number] for each in given]
            if not given:
                states = [x.new_zeros(len(x), operator.hidden) for _ in operator.states]
            weights = (own[f"weight_{which}{suffix}"] for which in ("ih", "hh"))
            result, cell = _Direction.apply(
                x,
                *weights,
                *biases,
                states[0],
                states[-1],
                CELLS[type(operator)],
                rounding,
                array_rows,
                number,
            )
            found.append(result)
            cells.append(cell[:, None])
        y = torch.cat(found, -1)
        if isinstance(operator, ops.Lstm) and operator.final_cell:
            y = torch.cat((y, torch.cat(cells, -1)), 1)
        return y

    others = {role: each for role, each in late.items() if each is not None}
    result = with_parameters(roles)
    return with_gradients_of(result, with_parameters({**roles, **others})) if others else result


class _Lstm:
    """Cells of long short-term memory."""

    @staticmethod
    def forward(sums: torch.Tensor, product: torch.Tensor, cell: torch.Tensor) -> tuple[Any, ...]:
        """The hidden state before it is rounded, the cell, and what the gradient needs."""
        i, f, g, o = (sums + product).chunk(4, 1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        after = f * cell + i * g
        return o * torch.tanh(after), after, (i, f, g, o, cell, after)

    @staticmethod
    def backward(kept: Several, dh: torch.Tensor, dcell: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of both products, and of the cell before."""
        i, f, g, o, before, cell = kept
        turned = torch.tanh(cell)
        dc = dh * o * (1 - turned * turned) + dcell
        dsums = (
            dc * g * (i - i * i),
            dc * before * (f - f * f),
            dc * i * (1 - g * g),
            dh * turned * (o - o * o),
        )
        return torch.cat(dsums, 1), torch.cat(dsums, 1), dc * f


class _Gru:
    """Cells of gated recurrent units, of which the cell is the hidden state in FP32."""

    @staticmethod
    def forward(sums: torch.Tensor, product: torch.Tensor, cell: torch.Tensor) -> tuple[Any, ...]:
        """See `_Lstm`."""
        (a, b, c), (d, e, q) = sums.chunk(3, 1), product.chunk(3, 1)
        r, z = torch.sigmoid(a + d), torch.sigmoid(b + e)
        n = torch.tanh(c + r * q)
        after = n + z * (cell - n)
        return after, after, (r, z, n, q, cell)

    @staticmethod
    def backward(kept: Several, dh: torch.Tensor, dcell: torch.Tensor) -> tuple[Any, ...]:
        """See `_Lstm`."""
        r, z, n, q, before = kept
        dh = dh + dcell
        dz = dh * (before - n) * (z - z * z)
        dn = (dh - dh * z) * (1 - n * n)
        dr = dn * q * (r - r * r)
        return torch.cat((dr, dz, dn), 1), torch.cat((dr, dz, dn * r), 1), dh * z


CELLS = {ops.Lstm: _Lstm, ops.Gru: _Gru}
"""The cell of each operator."""


class _Direction(torch.autograd.Function):  # type: ignore[misc]
    """One direction: from the first position to the last, or back.

    The results are the hidden states of all positions, and the last cell.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        of_inputs: torch.Tensor,
        of_states: torch.Tensor,
        bias_inputs: torch.Tensor,
        bias_states: torch.Tensor,
        state: torch.Tensor,
        cell: torch.Tensor,
        kind: type[_Lstm | _Gru],
        rounding: Rounding,
        array_rows: int,
        number: int,
    ) -> Several:
        samples, positions, features = x.shape
        rows = x.transpose(0, 1).reshape(-1, features)
        sums = _product(rows, of_inputs, array_rows).unflatten(0, (positions, samples))
        sums = sums + bias_inputs
        turns = range(positions)[:: -1 if number else 1]
        before: dict[int, torch.Tensor] = {}
        kept: dict[int, Several] = {}
        states: dict[int, torch.Tensor] = {}
        for at in turns:
            before[at] = state
            product = _product(state, of_states, array_rows) + bias_states
            state, cell, kept[at] = kind.forward(sums[at], product, cell)
            states[at] = state = rounding(state)
        given = rows, of_inputs, of_states
        ctx.kept = *given, before, kept, turns, kind, rounding, array_rows
        return torch.stack([states[at] for at in range(positions)], 1), cell

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, of_inputs, of_states, before, kept, turns, kind, rounding, array_rows = ctx.kept
        dy, dcell = given
        samples, positions, hidden = dy.shape
        dstate = dy.new_zeros(samples, hidden)
        dsums: dict[int, torch.Tensor] = {}
        dproducts: dict[int, torch.Tensor] = {}
        for at in reversed(turns):
            found, product, dcell = kind.backward(kept[at], dy[:, at] + dstate, dcell)
            dsums[at], dproducts[at] = rounding(found), rounding(product)
            dstate = _input_gradient(dproducts[at], of_states, array_rows)
        all_sums, all_products, states = (
            torch.cat([each[at] for at in range(positions)]) for each in (dsums, dproducts, before)
        )
        dx = _input_gradient(all_sums, of_inputs, array_rows).unflatten(0, (positions, samples))
        return (
            dx.transpose(0, 1),
            _weight_gradient(rows, all_sums, array_rows),
            _weight_gradient(states, all_products, array_rows),
            all_sums.sum(0),
            all_products.sum(0),
            dstate,
            dcell,
            None,
            None,
            None,
            None,
        )


def _images(x: torch.Tensor) -> torch.Tensor:
    """A matrix as images of one pixel."""
    return x[..., None, None]


def _product(x: torch.Tensor, weight: torch.Tensor, array_rows: int) -> torch.Tensor:
    conv = ConvSpec.linear(len(x), *weight.shape)
    return convolved(_images(x), _images(weight), conv, array_rows).flatten(1)


def _input_gradient(dy: torch.Tensor, weight: torch.Tensor, array_rows: int) -> torch.Tensor:
    conv = ConvSpec.linear(len(dy), *weight.shape)
    return input_gradient(_images(dy), _images(weight), conv, array_rows).flatten(1)


def _weight_gradient(x: torch.Tensor, dy: torch.Tensor, array_rows: int) -> torch.Tensor:
    conv = ConvSpec.linear(len(x), dy.shape[1], x.shape[1])
    return weight_gradient(_images(x), _images(dy), conv, array_rows).flatten(1)

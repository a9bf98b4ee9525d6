"""The graph builder of the frontends, whose layers have parameters with values."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpgapipe.network.graph import Graph, GraphBuilder, Layer
from fpgapipe.network.operators import (
    Constant,
    Expand,
    Operator,
    Reshape,
    Select,
    Slice,
    Softmax,
    Transpose,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Own = tuple[str, tuple[int, ...]]
"""A weight's name in the source, and which of its axes each axis of a parameter is; see
`Parameter.order`."""


class Unsupported(Exception):
    """A node needs something that is not supported, although its operator is known."""


class FrontendBuilder(GraphBuilder):
    """A graph builder for sources that name their weights.

    Parameters
    ----------
    name : str
        The network's name.
    batch : int or None
        Samples in a batch; None if they are not known.
    own_names : collection of str
        Weights whose parameters keep their names in the source. Other parameters are named after
        their layer.
    """

    def __init__(self, name: str, batch: int | None, own_names: Collection[str] = ()) -> None:
        super().__init__(name, batch)
        self._owners: dict[Hashable, str] = {}
        self._own_names = frozenset(own_names)
        self.frozen: set[str] = set()
        """Weights that the source does not train."""
        self.orders: dict[str, tuple[int, ...]] = {}
        """Weights whose axes the layers that read them need in another order; see `Parameter`."""

    def add_with_values(
        self,
        name: str,
        operator: Operator,
        *inputs: str,
        values: Mapping[str, tuple[str, NDArray[np.generic]]],
        keys: Mapping[str, Hashable] | None = None,
        own: Mapping[str, Own] | None = None,
    ) -> str:
        """Add a layer and give its parameters their values; return its name.

        Parameters
        ----------
        name : str
            Name of the layer; a number is appended if the name is taken.
        operator : Operator
            The layer's operation.
        *inputs : str
            Names of network inputs or earlier layers.
        values : mapping
            For each role, the weight's name in the source and its values in the operator's layout.
            A weight that an earlier layer has already is shared with that layer.
        keys : mapping, optional
            For each role, what is equal for weights that are shared, if not the weight's name.
        own : mapping, optional
            For roles whose values are a whole weight of the source, its name there and the order of
            its axes in the operator's layout, if not those of `own_names` and `orders`.
        """
        keys = keys or {role: source for role, (source, _) in values.items()}
        if not self.is_free(name) or (
            name in self._own_names and not isinstance(operator, Constant)
        ):
            name = self.fresh_name(f"{name}_")
        if own is None:
            own = {
                role: (source, self.orders.get(source, ()))
                for role, (source, _) in values.items()
                if source in self._own_names
            }
        names: dict[str, str] = {}
        new: dict[Hashable, str] = {}
        for role in values:
            known = self._owners.get(keys[role]) or new.get(keys[role])
            if known is None:
                known = self._name_of(own.get(role), f"{name}.{role}", {*new.values()})
                new[keys[role]] = known
            names[role] = known
        frozen = [role for role, (source, _) in values.items() if source in self.frozen]
        orders = {
            role: order for role, (given, order) in own.items() if order and names[role] == given
        }
        self.add(name, operator, *inputs, shared=names, frozen=frozen, orders=orders)
        for role, (source, value) in values.items():
            if keys[role] not in self._owners:
                self._owners[keys[role]] = names[role]
                back = self._parameters[names[role]].back
                self.set_value(names[role], value.transpose(back) if back else value)
                _refuse_no_numbers(source, value, fixed=source in self.frozen)
        return name

    def _name_of(self, own: Own | None, name: str, taken: Collection[str]) -> str:
        """The name of a new parameter: that of the source, else another that no parameter has."""
        used = {*self._parameters, *taken}
        if own is not None and own[0] not in used:
            return own[0]
        while name in used or name in self._own_names:
            name += "_"
        return name

    def layer(self, name: str) -> Layer | None:
        """The layer of a name; None if it is an input of the network."""
        return self._layers.get(name)

    def fixed_value(self, name: str) -> NDArray[np.generic] | None:
        """Numbers that a layer gives and that are never trained; None for any other value."""
        layer = self._layers.get(name)
        if layer is None or not isinstance(layer.operator, Constant) or layer.operator.trainable:
            return None
        return self._values.get(layer.parameters[0].name)

    def build(
        self,
        outputs: Sequence[str] | None = None,
        auxiliary: Sequence[str] = (),
        *,
        prune: bool = False,
    ) -> Graph:
        """Finish the network; see `GraphBuilder.build`.

        Parameters
        ----------
        outputs, auxiliary
            As for `GraphBuilder.build`.
        prune : bool
            Whether to leave out layers that no output needs.
        """
        if prune and outputs:
            needed = set(outputs)
            for layer in reversed(self._layers.values()):
                if layer.name in needed:
                    needed.update(layer.inputs)
            self._layers = {name: each for name, each in self._layers.items() if name in needed}
            kept = {p.name for layer in self._layers.values() for p in layer.parameters}
            self._values = {name: value for name, value in self._values.items() if name in kept}
        return super().build(outputs, auxiliary)

    def softmax(self, name: str, layer: str, axis: int, *, log: bool) -> str:
        """Add a softmax, or its logarithm, along an axis.

        A core computes it along the channels or the last axis; another axis is exchanged with the
        last one before and after.
        """
        rank = len(self.tensor(layer).shape)
        place = axis % rank if rank else 0
        if place in (1, rank - 1) or not rank:
            return self.add_with_values(name, Softmax(axis, log=log), layer, values={})
        order = list(range(rank))
        order[place], order[-1] = order[-1], order[place]
        turn = Transpose(tuple(order))
        layer = self.add_with_values(f"{name}.last", turn, layer, values={})
        layer = self.add_with_values(f"{name}.softmax", Softmax(-1, log=log), layer, values={})
        return self.add_with_values(name, turn, layer, values={})

    def entries(self, name: str, layer: str, indices: NDArray[Any], axis: int = 0) -> str:
        """Add layers that give the entries of a tensor along an axis at fixed indices.

        Parameters
        ----------
        name, layer : str
            Name of the result, and of the tensor.
        indices : array of int
            Places along the axis, of any shape; the axes of that shape take the axis's place.
        axis : int
        """
        shape = self.tensor(layer).shape
        if not axis:
            return self._first_entries(name, layer, indices)
        # The axis goes to the front, and what takes its place goes back.
        order = (axis, *range(axis), *range(axis + 1, len(shape)))
        layer = self.add_with_values(f"{name}.front", Transpose(order), layer, values={})
        layer = self._first_entries(f"{name}.entries", layer, indices)
        places, middle = indices.ndim, indices.ndim + axis
        back = (
            *range(places, middle), *range(places), *range(middle, places + len(shape) - 1)
        )  # fmt: skip
        return self.add_with_values(name, Transpose(back), layer, values={})

    def _first_entries(self, name: str, layer: str, indices: NDArray[Any]) -> str:
        shape = self.tensor(layer).shape
        wanted = (*indices.shape, *shape[1:])
        copies = 1
        while indices.ndim > 1 and (indices == indices[:1]).all():  # samples have the same indices
            copies *= indices.shape[0]
            indices = indices[0]
        places = [int(each) % shape[0] for each in indices.flatten()]
        if not places:
            raise Unsupported("selects nothing")
        first, count = places[0], len(places)
        if len(set(places)) == 1:
            copies, count = copies * count, 1

        def then(suffix: str, operator: Operator) -> str:
            return self.add_with_values(f"{name}{suffix}", operator, layer, values={})

        if places[:count] != list(range(first, first + count)):
            layer = then(".select", Select(tuple(places)))
        elif count < shape[0]:
            layer = then(".slice", Slice(0, first, first + count))
        if copies > 1:
            layer = then(".one", Reshape((1, count, *shape[1:])))
            layer = then(".expand", Expand((copies, count, *shape[1:])))
        return layer if self.tensor(layer).shape == wanted else then("", Reshape(wanted))


def _refuse_no_numbers(source: str, value: NDArray[np.generic], *, fixed: bool) -> None:
    """Refuse a weight with values that are not finite; a constant may have infinities (a mask)."""
    import numpy as np

    if value.dtype.kind != "f" or not value.size:
        return
    once = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.strides)]
    wrong = np.isnan(once) if fixed else ~np.isfinite(once)
    if wrong.any():
        place = [int(axis) for axis in np.argwhere(wrong)[0]]
        raise Unsupported(f"weight {source!r} holds {once[tuple(place)]} at {place}")

"""Parts of a network as modules of PyTorch, and the tensors that go from part to part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_reference import arranged, run_layer
from fpgapipe.network.operators import Dropout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph


def tensors_between(graph: Graph) -> list[tuple[str, ...]]:
    """Names of the tensors that are there and are still read, before each layer and at the end.

    The first are the inputs of the network, the last its outputs.
    """
    last = {
        name: index for index, layer in enumerate(graph.layers.values()) for name in layer.inputs
    }
    last |= dict.fromkeys(graph.outputs, len(graph.layers))
    there = list(graph.inputs)
    found = []
    for index, name in enumerate((*graph.layers, None)):
        there = [each for each in there if last.get(each, -1) >= index]
        found.append(tuple(there))
        if name is not None:
            there.append(name)
    return found


def parts_of(graph: Graph) -> list[tuple[str, ...]]:
    """Names of the layers of the smallest parts, each of which gives one tensor to the next.

    The tensors have real numbers, of which there are gradients.
    """
    found: list[list[str]] = [[]]
    for layer, between in zip(graph.layers.values(), tensors_between(graph)[1:], strict=True):
        found[-1].append(layer.name)
        if between == (layer.name,) and layer.output.dtype.is_float:
            found.append([])
    return [tuple(part) for part in found if part]


class Part(torch.nn.Module):  # type: ignore[misc]
    """Some layers of a network that follow one another.

    Parameters
    ----------
    graph : Graph
        Network for the samples of a micro-batch.
    names : sequence of str
        Names of the layers.
    takes, gives : sequence of str
        Names of the tensors that the part gets and returns, in this order.
    values : mapping of str to array
        Initial parameters of the network.
    """

    def __init__(
        self,
        graph: Graph,
        names: Sequence[str],
        takes: Sequence[str],
        gives: Sequence[str],
        values: Mapping[str, NDArray[np.float32]],
    ) -> None:
        super().__init__()
        self._layers = [graph.layers[name] for name in names]
        self._takes, self._gives = tuple(takes), tuple(gives)
        self.places: dict[str, str] = {}
        for parameter in (each for layer in self._layers for each in layer.parameters):
            if parameter.name in self.places:
                continue
            place = self.places[parameter.name] = f"value{len(self.places)}"
            value = torch.from_numpy(values[parameter.name].copy())
            if parameter.spec.trainable:
                self.register_parameter(place, torch.nn.Parameter(value))
            else:
                self.register_buffer(place, value)

    def forward(self, *given: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Compute the tensors that the part gives, one alone without a tuple."""
        known = dict(zip(self._takes, given, strict=True))
        for layer in self._layers:
            own: dict[str, Any] = {
                each.spec.role: arranged(each, getattr(self, self.places[each.name]))
                for each in layer.parameters
            }
            args = [known[name] for name in layer.inputs]
            known[layer.name] = run_layer(layer, own, args, training=self.training)
        found = tuple(known[name] for name in self._gives)
        return found if len(found) > 1 else found[0]


def make_parts(
    graph: Graph, cuts: Sequence[Sequence[str]], values: Mapping[str, NDArray[np.float32]]
) -> list[Part]:
    """Modules of parts of a network, which has all layers in the order of the network.

    Parameters
    ----------
    graph, values
        As for `Part`.
    cuts : sequence of sequence of str
        Names of the layers of each part.

    Raises
    ------
    UserError
        If the parts are not the network's layers in their order, or a tensor of whole numbers goes
        from one to the next.
    """
    names = [name for part in cuts for name in part]
    if names != list(graph.layers):
        odd = next(
            (each for each, other in zip(names, graph.layers, strict=False) if each != other),
            names[-1] if names else "",
        )
        raise UserError(
            f"the stages must have the layers of {graph.name} in their order; {odd!r} is at "
            "another place, is there twice, or ends them too early"
        )
    between = tensors_between(graph)
    between[0] = tuple(graph.inputs)  # also those that nothing reads
    ends = [0]
    for part in cuts:
        ends.append(ends[-1] + len(part))
    for number, end in enumerate(ends[1:-1]):
        for name in between[end]:
            tensor = graph.inputs.get(name) or graph.layers[name].output
            if not tensor.dtype.is_float:
                raise UserError(
                    f"stage {number} would send {name!r}, a tensor of {tensor.dtype.value}, which "
                    "has no gradient; cut the network elsewhere"
                )
    return [
        Part(graph, part, between[first], between[end], values)
        for part, first, end in zip(cuts, ends, ends[1:], strict=False)
    ]


def shared_parameters(graph: Graph, cuts: Iterable[Sequence[str]]) -> dict[str, tuple[int, ...]]:
    """Names of the parameters that several parts have, with the numbers of these parts."""
    owners: dict[str, dict[int, None]] = {}
    for number, part in enumerate(cuts):
        for parameter in (each for name in part for each in graph.layers[name].parameters):
            owners.setdefault(parameter.name, {})[number] = None
    return {name: tuple(own) for name, own in owners.items() if len(own) > 1}


def check_split(graph: Graph, cuts: Sequence[Sequence[str]]) -> None:
    """Refuse stages whose backward pass PyTorch cannot do in two halves.

    PyTorch finds the gradients of weights from places on the way to the gradient of the stage's
    input. Weights that lie on another way would get none, without a word. The first stage has a
    whole backward pass.

    Raises
    ------
    UserError
        If a stage gives a tensor with a gradient that comes from no tensor with one that it takes.
    """
    carrying: set[str] = set()
    for number, part in enumerate(cuts):
        own: set[str] = set()  # carries a gradient
        reached: set[str] = set()  # and does so because a tensor that the stage takes does
        for name in part:
            layer = graph.layers[name]
            through = {layer.inputs[index] for index in graph.input_gradients(name)}
            if through or any(each.spec.trainable for each in layer.parameters):
                own.add(name)
            if not through.isdisjoint(carrying | reached):
                reached.add(name)
        later = {name for other in cuts[number + 1 :] for name in other}
        read = {each for name in later for each in graph.layers[name].inputs}
        for name in part if number else ():
            if name in own - reached and (name in read or name in graph.outputs):
                raise UserError(
                    f"stage {number} gives {name!r}, whose gradient comes from no tensor of the "
                    "stages before, as if these had nothing to learn; PyTorch does not split such "
                    "a backward pass: plan with a schedule that has whole ones (gpipe, 1f1b), or "
                    "cut the network elsewhere"
                )
        carrying |= own


def dropping_layers(graph: Graph) -> Iterator[str]:
    """Names of the layers that drop elements at random."""
    return (name for name, layer in graph.layers.items() if isinstance(layer.operator, Dropout))

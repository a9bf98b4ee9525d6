"""The translation of an ATen graph."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fpgapipe.network.frontends.builder import FrontendBuilder, Unsupported
from fpgapipe.network.frontends.masks import Masks
from fpgapipe.network.frontends.supported import likeliest, unsupported
from fpgapipe.network.frontends.torch.torch_aliases import Aliases
from fpgapipe.network.frontends.torch.torch_registry import ATTEMPTS, HANDLERS, Node
from fpgapipe.network.frontends.torch.torch_values import (
    FILLS,
    Noise,
    Pairs,
    Reference,
    array,
    only_asks,
    order_of,
    rank,
    tensor_of,
)
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.operators import Binary, Constant, Operator
from fpgapipe.network.operators.tensors import ShapeError, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Translation:
    """A graph that is being built, and the results of the program's nodes.

    Parameters
    ----------
    torch : module
        The torch library.
    program : torch.export.ExportedProgram
        The program to translate.
    name : str
        The network's name.
    training : bool
        Whether the program computes as in training.
    """

    def __init__(self, torch: Any, program: Any, name: str, training: bool) -> None:
        self.torch = torch
        self.training = training
        self._program = program
        self._results: dict[Any, Any] = {}  # node to layer's name, torch.Tensor, or list of them
        self._weights: dict[Any, str] = {}  # weight's node to its name in the module
        self._learned: dict[Any, frozenset[str]] = {}  # known node to parameters it depends on
        self._aliases = Aliases(torch, program.graph)
        signature = program.graph_signature
        sources = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants = {**program.state_dict, **program.constants}
        sources |= getattr(signature, "inputs_to_lifted_tensor_constants", {})
        storages: dict[Any, str] = {}  # tied weights have several names and one storage
        frozen = set()
        inputs = []
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            if node.name not in sources:
                inputs.append(node)
                continue
            weight = sources[node.name]
            value = constants[weight]
            if value.numel() and value.layout is torch.strided:
                place = (value.data_ptr(), tuple(value.shape), value.stride())
                weight = storages.setdefault(place, weight) if place[0] else weight
            self._weights[node] = weight
            self._results[node] = value.detach()
            if node.name in signature.inputs_to_parameters and value.requires_grad:
                self._learned[node] = frozenset((weight,))
            else:
                frozen.add(weight)
        batch = next((n.meta["val"].shape[0] for n in inputs if rank(n)), 1)
        if not isinstance(batch, int):
            raise NetworkError(f"{name}: the batch is dynamic; export with a fixed size")
        self.builder = FrontendBuilder(name, batch, frozenset(constants))
        self.builder.frozen |= frozen
        self.masks = Masks(self.builder)
        for node in inputs:
            self._results[node] = self.builder.input(node.name, tensor_of(node.meta["val"]))
        self._skipped: set[Any] = set()
        self._constants: dict[Any, tuple[Any, str]] = {}  # known node to its value and its layer

    def run(self) -> Graph:
        """Translate all nodes.

        Raises
        ------
        NetworkError
            If nodes have no translation or need something unsupported. The message names them all.
        """
        self._skip_written_buffers()
        self._refuse_unsupported()
        faults = []
        lost: set[Any] = set()
        for node in self._program.graph.nodes:
            if not self._counts(node):
                continue
            if lost.intersection(node.all_input_nodes):
                lost.add(node)
                continue
            try:
                self._step(node)
            except (Unsupported, ShapeError, NetworkError) as error:
                faults.append(f"node {node.name!r} ({node.target}): {error}")
                lost.add(node)
        if faults:
            self._refuse(faults)
        graph = self.builder.build(self._outputs(), prune=True)
        try:
            self.masks.check(graph)
        except Unsupported as error:
            self._refuse([str(error)])
        return graph

    def _counts(self, node: Any) -> bool:
        """Whether a node computes or overwrites something that is read."""
        return (
            node.op == "call_function"
            and node not in self._skipped
            and bool(node.users or node in self._aliases.writes)
        )

    def _skip_written_buffers(self) -> None:
        """Skip updates of buffers that nothing reads (batch counters); refuse all others."""
        written: dict[Any, list[Any]] = {}
        for node in self._aliases.writes:
            written.setdefault(self._aliases.owner(node), []).append(node)
        faults = []
        for owner, writers in written.items():
            if owner not in self._weights:
                continue
            members = {owner, *writers}
            readers = {user for each in members for user in each.users if user.op != "output"}
            if readers <= members:
                self._skipped.update(writers)
            else:
                faults.append(
                    f"the module changes {self._weights[owner]!r} as it runs (node "
                    f"{writers[0].name!r}); only the statistics of batch normalisation may change"
                )
        if faults:
            self._refuse(faults)

    def _outputs(self) -> list[str]:
        """The layers that give the module's results; updated buffers do not count."""
        (end,) = (node for node in self._program.graph.nodes if node.op == "output")
        given = [
            node
            for node, spec in zip(
                end.args[0], self._program.graph_signature.output_specs, strict=True
            )
            if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")
        ]
        named: list[str] = []
        for index, node in enumerate(given):
            if node is None:
                continue
            result = self._results.get(node) if isinstance(node, self.torch.fx.Node) else None
            if self._learned.get(node):
                result = self.layer(node)
            fault = ""
            if not isinstance(result, str):
                fault = "is a constant"
            elif result in self.builder.inputs:
                fault = f"is the input {result!r} itself"
            elif result in named:
                fault = f"is the same as result {named.index(result)}"
            if fault:
                self._refuse([f"result {index} of the module {fault}; leave it out"])
            assert isinstance(result, str)
            named.append(result)
        return named

    def _refuse_unsupported(self) -> None:
        by_target: dict[str, list[str]] = {}
        known = {node for node, result in self._results.items() if not isinstance(result, str)}
        for node in self._program.graph.nodes:
            if node.op not in ("call_function", "call_module", "get_attr"):
                continue
            if node.op == "call_function" and not self._counts(node):
                continue
            if (known.issuperset(node.all_input_nodes) and self._is_fixed(node)) or only_asks(node):
                known.add(node)  # it will be evaluated, so it needs no translation
            elif not self._has_translation(node):
                by_target.setdefault(str(node.target), []).append(node.name)
        if by_target:
            faults = unsupported(by_target)
            if any(self._draws(node) for node in self._program.graph.nodes):
                faults.append("random numbers are drawn anew in each run; only dropout may")
            faults.append(likeliest(by_target, {*HANDLERS, *ATTEMPTS}))
            self._refuse(faults)

    def _has_translation(self, node: Any) -> bool:
        return (
            str(node.target) in {*HANDLERS, *ATTEMPTS, *FILLS}
            or node.target is python_operator.getitem
        )

    def _refuse(self, faults: list[str]) -> None:
        raise NetworkError("\n".join(f"{self.builder.name}: {fault}" for fault in faults))

    def _draws(self, node: Any) -> bool:
        """Whether a node draws random numbers."""
        tags = getattr(node.target, "tags", ())
        drawn = self.torch.Tag.nondeterministic_seeded in tags
        recurrent = any(each in str(node.target) for each in ("gru", "rnn", "lstm"))  # may drop
        return drawn and not recurrent and str(node.target) not in HANDLERS

    def _is_fixed(self, node: Any) -> bool:
        """Whether a node gives the same result for the same inputs in every run."""
        target = node.target
        if not isinstance(target, self.torch._ops.OpOverload):
            return getattr(target, "__module__", "") in ("_operator", "math", "builtins")
        if self.torch.Tag.nondeterministic_seeded in target.tags:
            return False
        return "empty" not in target.name()  # "empty" returns arbitrary memory

    def _step(self, node: Any) -> None:
        """Evaluate a node if all its inputs are known, or else translate it.

        A node that depends on learned parameters is evaluated as well, for nodes that need only its
        shape. Where its values are read, it becomes layers.
        """
        if self._fills_part(node):
            self._fill_part(node)
            return
        inputs = node.all_input_nodes
        learned = frozenset[str]().union(*(self._learned.get(each, ()) for each in inputs))
        known = all(self._is_known(each) for each in inputs) and self._is_fixed(node)
        known = known or only_asks(node)
        if known and not (learned and node in self._aliases.writes):
            result = self._evaluate(node)
            self._results[node] = result
            if learned:
                self._learned[node] = learned
            else:
                self.builder.frozen.add(self._source(node))
            if node in self._aliases.writes:
                self._overwrite(node, result)
            return
        if node.target is python_operator.getitem:
            source, index = node.args
            results = self._results[source]
            if not isinstance(results, list) or results[index] is None:
                raise Unsupported(f"result {index} of {source.name!r} is not supported")
            self._results[node] = results[index]
            return
        attempt = ATTEMPTS.get(str(node.target))
        if attempt is not None and attempt(self, Node(node)):
            return
        handler = HANDLERS.get(str(node.target))
        if handler is None:
            raise Unsupported("operator is not supported for what is computed or learned")
        handler(self, Node(node))

    def _overwrite(self, node: Any, result: Any) -> None:
        """Update the results of all names and views of an overwritten tensor."""
        tensor, stale = self._aliases.written(node)
        self._results[tensor] = result
        for each in stale:
            if self._aliases.is_same(each):
                self._results[each] = self._results[self._aliases.base(each)]
            else:
                self._step(each)

    def _fills_part(self, node: Any) -> bool:
        """Whether a node overwrites a view of a tensor with fixed numbers."""
        if node not in self._aliases.writes or not self._aliases.is_part(node):
            return False
        fixed = self._is_fixed(node) and all(
            self._is_known(each) and not self._learned.get(each) for each in node.all_input_nodes
        )
        if fixed and self._is_known(self._aliases.owner(node)):
            return True
        others = [each for each in node.all_input_nodes if each is not self._aliases.writes[node]]
        known = all(self._is_known(each) and not self._learned.get(each) for each in others)
        return known and str(node.target) in FILLS

    def _fill_part(self, node: Any) -> None:
        """Overwrite a view of a tensor with fixed numbers, and find all its views anew.

        A fixed tensor is overwritten as PyTorch does it. Of any other one, what is overwritten is
        multiplied by 0, and the numbers are added.
        """
        torch, aliases, owner = self.torch, self._aliases, self._aliases.owner(node)
        if self._is_known(owner) and not self._learned.get(owner):
            whole = self._results[owner].clone()
            aliases.write(node, whole, self._results)
            self._results[owner] = whole
        else:
            value = owner.meta["val"]
            kept, filled = (torch.full(tuple(value.shape), x, dtype=value.dtype) for x in (1, 0))
            aliases.view(node, kept, self._results).zero_()
            aliases.write(node, filled, self._results)
            layer, name = self.layer(owner), node.name
            layer = self.add(f"{name}.kept", Binary("mul"), layer, self.fixed(f"{name}.mask", kept))
            if filled.any():
                numbers = self.fixed(f"{name}.numbers", filled)
                layer = self.add(f"{name}.filled", Binary("add"), layer, numbers)
            self._results[owner] = layer
            self._learned.pop(owner, None)
        for each in aliases.views(owner, before=node):
            if aliases.is_same(each):
                self._results[each] = self._results[aliases.base(each)]
            else:
                self._step(each)
        self._results[node] = self._results[aliases.base(node)]

    def _is_known(self, node: Any) -> bool:
        result = self._results.get(node)
        return result is not None and not isinstance(result, str | list | Noise | Pairs)

    def _evaluate(self, node: Any) -> Any:
        """Run a node on copies of its known inputs, so that weights do not change."""
        torch = self.torch

        def copy(each: Any) -> Any:
            if not self._is_known(each):  # only its shape and type matter
                value = each.meta["val"]
                return torch.zeros(tuple(value.shape), dtype=value.dtype)
            result = self._results[each]
            return result.clone() if isinstance(result, torch.Tensor) else result

        copies = {each: copy(each) for each in node.all_input_nodes}
        args = torch.fx.node.map_arg(node.args, copies.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, copies.__getitem__)
        try:
            with torch.no_grad():
                result = node.target(*args, **kwargs)
        except Exception as error:
            raise Unsupported(f"evaluating it failed: {error}") from None
        return tuple(result) if isinstance(result, list) else result

    def _compute(self, node: Any) -> None:
        """Translate a known node that depends on learned parameters to layers."""
        names = ", ".join(map(repr, sorted(self._learned.pop(node))))
        if node.target is python_operator.getitem:
            source, index = node.args
            if self._is_known(source):
                self._compute(source)
            self._results[node] = self._results[source][index]
            return
        handler = HANDLERS.get(str(node.target))
        if handler is None:
            raise Unsupported(
                f"{names} could not be learned: it is used through {node.name!r} ({node.target}), "
                "which is not supported"
            )
        handler(self, Node(node))

    # Methods for the translations of operators.

    def layer(self, node: Any) -> str:
        """The layer or network input that gives a node; a known tensor becomes a layer."""
        result = self._results[node]
        if isinstance(result, str):
            return result
        if isinstance(result, Noise):
            raise Unsupported("reads random numbers, which only dropout may")
        if isinstance(result, Pairs):
            raise Unsupported("is not supported for complex numbers; take it of view_as_real")
        if not isinstance(result, self.torch.Tensor):
            raise Unsupported(f"{node.name!r} is no tensor")
        learned = self._learned.get(node)
        if learned and node not in self._weights:
            self._compute(node)
            computed = self._results[node]
            assert isinstance(computed, str)
            return computed
        value, layer = self._constants.get(node, (None, ""))
        if value is result:  # the node's value was not overwritten since
            return layer
        source = self._source(node)
        if source in self.builder.orders:
            raise Unsupported(f"{source!r} is also used with its axes in another order")
        layer = self._constant(self._weights.get(node, node.name), source, result, bool(learned))
        self._constants[node] = result, layer
        return layer

    def _constant(self, name: str, source: str, value: Any, learned: bool) -> str:
        tensor = tensor_of(value)
        operator = Constant(tensor.shape, tensor.dtype, trainable=learned)
        values = {"value": (source, array(self.torch, value))}
        return self.builder.add_with_values(name, operator, values=values)

    def computed(self, node: Any) -> str | None:
        """The layer or network input that gives an argument; None if it is fixed or learned."""
        result = self._results.get(node) if isinstance(node, self.torch.fx.Node) else None
        return result if isinstance(result, str) else None

    def put(self, node: Any, layer: str) -> None:
        """Let another layer give a node's result to the nodes that follow."""
        self._results[node] = layer

    def fixed(self, name: str, value: Any) -> str:
        """Add a layer that gives a ``torch.Tensor`` of fixed numbers."""
        name = name if self.builder.is_free(name) else self.builder.fresh_name(f"{name}_")
        self.builder.frozen.add(f"%{name}")
        return self._constant(name, f"%{name}", value, learned=False)

    def tensor(self, node: Any) -> Tensor:
        """Shape and element type of a node's result."""
        result = self._results[node]
        if isinstance(result, str):
            return self.builder.tensor(result)
        return tensor_of(result)

    def noise(self, node: Any) -> Noise | None:
        """The random numbers that an argument stands for; None if it is anything else."""
        result = self._results.get(node) if isinstance(node, self.torch.fx.Node) else None
        return result if isinstance(result, Noise) else None

    def give_noise(self, node: Node, noise: Noise) -> None:
        """Record random numbers as a node's result."""
        self._results[node.fx] = noise

    def pairs(self, node: Any) -> Pairs | None:
        """The complex numbers that an argument stands for; None if it is fixed or none of these."""
        result = self._results.get(node) if isinstance(node, self.torch.fx.Node) else None
        if isinstance(result, self.torch.Tensor) and result.is_complex() and node in self._learned:
            self._compute(node)
            result = self._results[node]
        return result if isinstance(result, Pairs) else None

    def known(self, node: Any) -> Any | None:
        """The ``torch.Tensor`` of an argument; None if it is computed or learned."""
        if node is None or self._learned.get(node):
            return None
        result = self._results.get(node)
        return result if isinstance(result, self.torch.Tensor) else None

    def reference(self, node: Any) -> Reference | None:
        """The weight that an argument stands for; None if the network computes the argument.

        A learned weight may have its axes in another order, as in ``weight.t()``. Anything else
        that is computed from learned parameters is no weight, since it could not be learned.
        """
        order: tuple[int, ...] | None = None
        source = node
        while source not in self._weights and self._learned.get(source):
            inner = order_of(source)
            if inner is None:
                return None
            order = inner if order is None else tuple(inner[axis] for axis in order)
            source = source.args[0]
        result = self._results.get(source)
        if not isinstance(result, self.torch.Tensor):
            return None
        order = tuple(range(result.ndim)) if order is None else order
        return Reference(self._source(source), order, result.permute(order))

    def _source(self, node: Any) -> str:
        """Name of a known tensor: its name in the module, or that of the node that gives it."""
        return self._weights.get(node) or f"%{node.name}"

    def weight(
        self, node: Any, what: str, *, transposed: bool = False
    ) -> tuple[str, NDArray[np.generic]]:
        """Name and values of an argument that must be a weight.

        Parameters
        ----------
        node : torch.fx.Node
        what : str
            The operator's name of the argument, for errors.
        transposed : bool
            Whether the layer needs the weight with its last two axes exchanged.

        Raises
        ------
        Unsupported
            If the argument is no weight, or a learned weight with several readers would need its
            axes in another order.
        """
        found = self.reference(node)
        if found is None:
            raise Unsupported(f"its {what} is {self._computed_from(node)}")
        order = found.order
        value = found.value
        if transposed:
            order = (*order[:-2], order[-1], order[-2])
            value = value.transpose(-1, -2)
        source = found.source
        if list(order) != sorted(order):
            is_own = source in self._weights.values() and self._num_readers(source) == 1
            if is_own or source not in self.builder.frozen:
                if self._num_readers(source) > 1:
                    raise Unsupported(
                        f"its {what} is {source!r} with its axes in another order, and it is used "
                        "elsewhere"
                    )
                self.builder.orders[source] = order
            else:
                source = f"{source}.{order}"  # becomes a constant of its own
                self.builder.frozen.add(source)
        return source, array(self.torch, value)

    def can_hold(self, weight: Reference | None, *, transposed: bool = False) -> bool:
        """Whether a layer can own a weight with its axes in the order that the layer needs."""
        if weight is None:
            return False
        order = weight.order
        if transposed:
            order = (*order[:-2], order[-1], order[-2])
        rearranged = list(order) != sorted(order)
        return (
            not rearranged
            or weight.source in self.builder.frozen
            or self._num_readers(weight.source) == 1
        )

    def is_tied(self, node: Any) -> bool:
        """Whether an argument is a weight of the module that several nodes read."""
        while node not in self._weights and order_of(node):
            node = node.args[0]
        return node in self._weights and self._num_readers(self._weights[node]) > 1

    def _num_readers(self, source: str) -> int:
        """Number of nodes that read a weight, directly or with its axes in another order."""
        count = 0
        waiting = [node for node, name in self._weights.items() if name == source]
        while waiting:
            for user in waiting.pop().users:
                if order_of(user) is None:
                    count += 1
                else:
                    waiting.append(user)
        return count

    def _computed_from(self, node: Any) -> str:
        names = ", ".join(map(repr, sorted(self._learned.get(node, ()))))
        if not names:
            return "computed by the network"
        return f"computed from {names}, which could not be learned"

    def weights(self, node: Node, **roles: str) -> dict[str, tuple[str, NDArray[np.generic]]]:
        """Names and values of weights by role, for the arguments (role=argument) that are given."""
        return {
            role: self.weight(node[argument], argument)
            for role, argument in roles.items()
            if node[argument] is not None
        }

    def add(
        self,
        name: str,
        operator: Operator,
        *inputs: str,
        values: dict[str, tuple[str, NDArray[np.generic]]] | None = None,
    ) -> str:
        """Add a layer; `values` as in `FrontendBuilder.add_with_values`."""
        return self.builder.add_with_values(name, operator, *inputs, values=values or {})

    def name_of(self, node: Node, weight: Any) -> str:
        """Name of a layer with weights: that of the module that owns the weight.

        If the weight is another module's (tied weights), it is the name of the module that uses it.
        """
        owner = self._weights.get(weight, "").rpartition(".")[0]
        stack = list((node.fx.meta.get("nn_module_stack") or {"": ("", None)}).values())
        caller = str(stack[-1][0])
        return (owner if owner.startswith(caller) else caller) or node.name

    def give(self, node: Node, result: str | Pairs | Sequence[str | None]) -> None:
        """Record the layer that gives a node's result, or one layer for each of its results."""
        self._results[node.fx] = result if isinstance(result, str | Pairs) else list(result)
        self._learned.pop(node.fx, None)
        if node.fx in self._aliases.writes:
            self._overwrite(node.fx, self._results[node.fx])

    def reads_result(self, node: Node, index: int) -> bool:
        """Whether the result `index` of an operator with several results is read."""
        return any(
            user.target is python_operator.getitem and user.args[1] == index and user.users
            for user in node.fx.users
        )

    def simple(self, node: Node, operator: Operator, *arguments: str) -> None:
        """Translate a node to one layer; `arguments` name its inputs."""
        inputs = [self.layer(node[each]) for each in arguments or ("self",)]
        self.give(node, self.add(node.name, operator, *inputs))

"""An ATen graph on its way to ours, and the register of translations."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fpgapipe.partition.frontends.builder import FrontendBuilder, Unsupported
from fpgapipe.partition.graph import Graph, NetworkError
from fpgapipe.partition.operators import Constant, Operator
from fpgapipe.partition.tensors import DType, ShapeError, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Handler = Callable[["Translation", "Node"], None]
HANDLERS: dict[str, Handler] = {}
"""ATen operator (``aten.conv2d.default``) to the function that translates it."""

MAX_SHOWN = 50
"""How many nodes an error lists before it counts the rest."""


def handles(*targets: str) -> Callable[[Handler], Handler]:
    """Register a translation under operators' names without ``aten.``."""

    def register(function: Handler) -> Handler:
        HANDLERS.update({f"aten.{target}": function for target in targets})
        return function

    return register


class Node:
    """A call in the exported graph, its arguments by the names of the operator's schema."""

    def __init__(self, node: Any) -> None:
        self.fx = node
        self.target = str(node.target)
        self.name = str(node.name)
        self.arguments: dict[str, Any] = {}
        schema = getattr(node.target, "_schema", None)
        if schema is not None:
            for i, argument in enumerate(schema.arguments):
                if i < len(node.args):
                    self.arguments[argument.name] = node.args[i]
                elif argument.name in node.kwargs:
                    self.arguments[argument.name] = node.kwargs[argument.name]
                elif argument.has_default_value():
                    self.arguments[argument.name] = argument.default_value

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def in_place(self) -> bool:
        """Whether the operator overwrites its first argument."""
        return self.target.startswith("aten.") and self.target.split(".")[1].endswith("_")


class Translation:
    """A graph in the making, and what its nodes have become."""

    def __init__(self, torch: Any, program: Any, name: str) -> None:
        self.torch = torch
        self._program = program
        self._results: dict[Any, Any] = {}  # node to layer's name, torch.Tensor, or list of them
        self._weights: dict[Any, str] = {}  # node to its name in the module
        self._storages: dict[int, str] = {}  # tied weights have several names and one storage
        signature = program.graph_signature
        sources = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        learned = set(signature.inputs_to_parameters)
        constants = {**program.state_dict, **program.constants}
        sources |= getattr(signature, "inputs_to_lifted_tensor_constants", {})
        inputs = []
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            if node.name in sources:
                weight = sources[node.name]
                value = constants[weight].detach()
                self._results[node] = value
                first = self._storages.setdefault(value.data_ptr(), weight) if value.numel() else ""
                self._weights[node] = first or weight
            else:
                inputs.append(node)
        self._learned = {n for n in self._weights if n.name in learned}
        batch = next((n.meta["val"].shape[0] for n in inputs if _rank(n)), 1)
        if not isinstance(batch, int):
            raise NetworkError(f"{name}: the batch is dynamic; export with a fixed size")
        self.builder = FrontendBuilder(name, batch, frozenset(constants))
        for node in inputs:
            self._results[node] = self.builder.input(node.name, _tensor_of(node.meta["val"]))

    def run(self) -> Graph:
        """Translate all nodes.

        Raises
        ------
        NetworkError
            With every node that has no translation, or that asks for something unsupported.
        """
        self._refuse_unsupported()
        faults = []
        lost: set[Any] = set()
        for node in self._program.graph.nodes:
            if node.op != "call_function" or not (node.users or Node(node).in_place):
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
        return self.builder.build(self._outputs())

    def _outputs(self) -> list[str]:
        """The layers whose results the module gives; changed buffers are none."""
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
        known: set[Any] = set(self._results) - {
            node for node, result in self._results.items() if isinstance(result, str)
        }
        for node in self._program.graph.nodes:
            if node.op not in ("call_function", "call_module", "get_attr"):
                continue
            if node.op == "call_function" and known.issuperset(node.all_input_nodes):
                known.add(node)  # evaluated, whatever it is
            elif str(node.target) not in HANDLERS and node.target is not python_operator.getitem:
                by_target.setdefault(str(node.target), []).append(node.name)
        if by_target:
            faults = []
            for target, names in sorted(by_target.items()):
                hidden = len(names) - MAX_SHOWN
                listed = ", ".join(names[:MAX_SHOWN])
                more = f" and {hidden} more" if hidden > 0 else ""
                faults.append(f"operator {target} is not supported (nodes {listed}{more})")
            faults.append(f"supported are {', '.join(sorted(HANDLERS))}")
            self._refuse(faults)

    def _refuse(self, faults: list[str]) -> None:
        raise NetworkError("\n".join(f"{self.builder.name}: {fault}" for fault in faults))

    def _step(self, node: Any) -> None:
        """Evaluate a node whose inputs are all known, else translate it."""
        inputs = node.all_input_nodes
        if all(self._is_known(each) for each in inputs):
            self._results[node] = self._evaluate(node)
            return
        if node.target is python_operator.getitem:
            source, index = node.args
            results = self._results[source]
            if not isinstance(results, list) or results[index] is None:
                raise Unsupported(f"result {index} of {source.name!r} is not supported")
            self._results[node] = results[index]
            return
        HANDLERS[str(node.target)](self, Node(node))

    def _is_known(self, node: Any) -> bool:
        result = self._results.get(node)
        return result is not None and not isinstance(result, str | list)

    def _evaluate(self, node: Any) -> Any:
        """Run a node on its known inputs, on copies so that weights stay as they are."""
        torch = self.torch
        copies = {
            each: self._results[each].clone()
            if isinstance(self._results[each], torch.Tensor)
            else self._results[each]
            for each in node.all_input_nodes
        }
        args = torch.fx.node.map_arg(node.args, copies.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, copies.__getitem__)
        try:
            with torch.no_grad():
                return node.target(*args, **kwargs)
        except Exception as error:
            raise Unsupported(f"evaluating it failed: {error}") from None

    # For the translations.

    def layer(self, node: Any) -> str:
        """The layer or network input behind a node; a known tensor becomes a layer of its own."""
        result = self._results[node]
        if isinstance(result, str):
            return result
        if not isinstance(result, self.torch.Tensor):
            raise Unsupported(f"{node.name!r} is no tensor")
        tensor = _tensor_of(result)
        learned = node in self._learned
        name = self._weights.get(node, node.name)
        constant = Constant(tensor.shape, tensor.dtype, trainable=learned)
        layer = self.builder.add_with_values(
            name, constant, values={"value": (name, _array(self.torch, result))}
        )
        self._results[node] = layer
        return layer

    def tensor(self, node: Any) -> Tensor:
        """Shape of a node's result."""
        result = self._results[node]
        if isinstance(result, str):
            return self.builder.tensor(result)
        return _tensor_of(result)

    def known(self, node: Any) -> Any | None:
        """The ``torch.Tensor`` behind an argument, None if it is computed by the network."""
        if node is None:
            return None
        result = self._results.get(node)
        return result if isinstance(result, self.torch.Tensor) else None

    def weight(self, node: Any, what: str) -> tuple[str, NDArray[np.generic]]:
        """Name and values of an argument that must be known."""
        value = self.known(node)
        if value is None:
            raise Unsupported(f"its {what} is computed by the network")
        return self._weights.get(node, node.name), _array(self.torch, value)

    def weights(self, node: Node, **roles: str) -> dict[str, tuple[str, NDArray[np.generic]]]:
        """Role to name and values, for those arguments (role=argument) that are given."""
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
        """What a layer with weights is called: the module that owns the weight.

        Where the weight is another module's (tied weights), it is the module that computes.
        """
        owner = self._weights.get(weight, "").rpartition(".")[0]
        stack = list((node.fx.meta.get("nn_module_stack") or {"": ("", None)}).values())
        caller = str(stack[-1][0])
        return (owner if owner.startswith(caller) else caller) or node.name

    def give(self, node: Node, result: str | Sequence[str | None]) -> None:
        """Say what a node has become: a layer, or one for each of its results."""
        self._results[node.fx] = result if isinstance(result, str) else list(result)
        if node.in_place:
            target = node.fx.args[0]
            if _is_shared(target):
                raise Unsupported("overwrites a view of another tensor; use the form that does not")
            self._results[target] = self._results[node.fx]

    def reads_result(self, node: Node, index: int) -> bool:
        """Whether anything reads one of an operator's several results."""
        return any(
            user.target is python_operator.getitem and user.args[1] == index and user.users
            for user in node.fx.users
        )

    def simple(self, node: Node, operator: Operator, *arguments: str) -> None:
        """Translate a node to one layer; `arguments` name its inputs."""
        inputs = [self.layer(node[each]) for each in arguments or ("self",)]
        self.give(node, self.add(node.name, operator, *inputs))


VIEWS = tuple(
    f"aten.{each}"
    for each in (
        "alias.default",
        "chunk.default",
        "detach.default",
        "expand.default",
        "flatten.using_ints",
        "permute.default",
        "reshape.default",
        "select.int",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "transpose.int",
        "unbind.int",
        "unflatten.int",
        "unsqueeze.default",
        "view.default",
    )
)
"""Operators whose result shares memory with their input."""


def _is_shared(node: Any) -> bool:
    """Whether a tensor is a view of one that anything else reads too."""
    while node.op == "call_function":
        source = node.args[0]
        if node.target is python_operator.getitem:  # pieces of one tensor do not overlap
            readers = [user for user in source.users if user.args[1:] == node.args[1:]]
        elif str(node.target) in VIEWS:
            readers = list(source.users)
        else:
            return False
        if len(readers) > 1:
            return True
        node = source
    return False


def translate(torch: Any, program: Any, name: str) -> Graph:
    """Translate an exported program; see `Translation.run`."""
    try:
        return Translation(torch, program, name).run()
    except ShapeError as error:
        raise NetworkError(f"{name}: {error}") from None


def _rank(node: Any) -> int:
    return len(getattr(node.meta.get("val"), "shape", ()))


def _tensor_of(value: Any) -> Tensor:
    sizes = tuple(value.shape)
    if not all(type(size) is int for size in sizes):
        raise ShapeError(f"shape {list(sizes)} is dynamic; export with fixed sizes")
    try:
        return Tensor(sizes, DType(str(value.dtype).removeprefix("torch.")))
    except ValueError as error:
        if isinstance(error, ShapeError):
            raise
        raise ShapeError(f"element type {value.dtype} is not supported") from None


def _array(torch: Any, value: Any) -> NDArray[np.generic]:
    """Values as numpy has them; BF16, which numpy lacks, as FP32 (exact)."""
    try:
        value = value.detach().cpu()
        value = value.float() if value.dtype is torch.bfloat16 else value
        array: NDArray[np.generic] = value.numpy()
    except (RuntimeError, TypeError) as error:  # on the meta device, sparse, quantised
        reason = " ".join(str(error).split())
        raise Unsupported(f"a weight of it has no values that can be read: {reason}") from None
    return array

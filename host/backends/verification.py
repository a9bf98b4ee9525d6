"""Compares an imported network with its source: results, gradients and running statistics.

Both sides compute in FP64, where rounding is negligible and any difference is a fault. A module
whose code fixes its types is compared in FP32. Learned values are changed a little from their
initial values, since zeros and ones would hide many faults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_reference import initial_weights
from fpgapipe.host.backends.verified_side import NotRunError, Side
from fpgapipe.network.frontends.onnx.onnx_reference import Evaluate, evaluator, has_runtime, runtime
from fpgapipe.network.frontends.source import OnnxSource, TorchSource
from fpgapipe.network.frontends.torch.torch_contexts import in_precision, own_state
from fpgapipe.network.frontends.torch.torch_modes import training_modes
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.verification import (
    EVALUATION,
    FLOOR,
    MODES,
    TOLERANCES,
    TRAINING,
    ZERO,
    Verification,
)
from fpgapipe.optional import require
from fpgapipe.output import beside_output


def verify(
    graph: Graph,
    *,
    batches: int = 2,
    modes: Sequence[str] = MODES,
    precisions: Sequence[str] = tuple(TOLERANCES),
) -> Verification:
    """Run a network and its source on the same random inputs.

    Parameters
    ----------
    graph : Graph
        Network, as a frontend has imported it.
    batches : int
        Number of batches in each mode.
    modes : sequence of str
        ``evaluation``, ``training`` or both.
    precisions : sequence of str
        Keys of `TOLERANCES`; the first one in which both sides run is used.

    Raises
    ------
    UserError
        If torch, which runs the network, is not installed.
    """
    source = graph.source
    if not isinstance(source, TorchSource | OnnxSource):
        reason = (
            f"{graph.name} was not imported from a module or an ONNX model, so there is nothing "
            "else to hold it to"
        )
        counted = graph.totals.parameters
        return Verification(None, reason=reason, samples=graph.batch, parameters=counted)
    torch = require("torch", "verifying a network")
    side = _Module if isinstance(source, TorchSource) else _Model
    found = _first_run([side(torch, graph, source, each) for each in precisions], batches, modes)
    if side is _Module or found.verified or not found.is_seen_in("float32"):
        return found
    if not has_runtime():
        missing = "onnxruntime, which might agree with it, is not installed"
        return replace(found, reason=f"{found.reason}; {missing}")
    second = _first_run([_RuntimeModel(torch, graph, source, "float32")], batches, modes)
    return second if second.verified else found


def _first_run(sides: list[Side], batches: int, modes: Sequence[str]) -> Verification:
    """The comparison by the first that runs."""
    failed = ""
    for compared in sides:
        try:
            with own_state(compared.torch, compared.precision), beside_output():
                return compared.run(batches, modes)
        except NotRunError as error:
            failed = str(error)
    graph = compared.graph
    return Verification(
        None, compared.name, failed, samples=graph.batch, parameters=graph.totals.parameters
    )


TRAINED_MACS, EVALUATED_MACS = 5e9, 50e9
"""Largest networks that `verified` trains, and that it runs at all, in MACs of a forward pass.

Either takes some ten seconds on two cores.
"""


def verified(graph: Graph, *, train: bool) -> Verification:
    """Verify a network before it is built, with one batch; large networks only in evaluation.

    Parameters
    ----------
    graph : Graph
    train : bool
        Whether the network will be trained.

    Raises
    ------
    NetworkError
        If the network differs from its source, or the source cannot be run.
    """
    limits = {EVALUATION: EVALUATED_MACS, TRAINING: TRAINED_MACS if train else 0}
    modes = [mode for mode in MODES if graph.totals.macs <= limits[mode]]
    if not modes:
        reason = (
            f"{graph.totals.macs:,} MACs take long, and it was left out; "
            "'fpgapipe inspect --verify' does it"
        )
        return Verification(None, reason=reason, parameters=graph.totals.parameters)
    found = verify(graph, batches=1, modes=modes)
    if found.verified is False or (found.verified is None and found.source):
        raise NetworkError(f"{graph.name} {found}; --no-verify builds it even so")
    return found


SHAKEN = 16
"""Size of the changes of a state that show how its gradients round, in roundings of a value."""

SPREADS = 8
"""Largest difference of gradients that is rounding, for their differences under such changes."""


class _Module(Side):
    """Compares a network with the PyTorch module that it was imported from."""

    name = "the PyTorch module"
    source: TorchSource

    def example(self, position: int) -> Any | None:
        """The tensor with which the module was exported."""
        tensors = self._flat(self.source.inputs)
        return tensors[position] if position < len(tensors) else None

    def run(self, batches: int, modes: Sequence[str]) -> Verification:
        """Compare some batches in each mode."""
        torch = self.torch
        fixed = self.source.fixed_training
        if fixed is not None:
            modes = (TRAINING,) if fixed else (EVALUATION,)
        if TRAINING in modes and (unread := self.source.unread_dropouts):
            raise NotRunError(
                f"the module draws random numbers for {', '.join(map(repr, unread))}, whose "
                "results nobody reads, so its other dropouts drop other values in training; leave "
                "them out"
            )
        faults, learned = self._parameter_faults()
        module = self.source.module
        self.state = self._moved_values()
        self.weights = self._weights()
        modes_before = {each: each.training for each in module.modules()}
        try:
            for index in range(batches):
                given = self.inputs(index)
                for mode in modes:
                    if fixed is None and mode == EVALUATION:
                        module.eval()
                    elif fixed is None:
                        training_modes(module, modes_before)
                    with torch.set_grad_enabled(mode == TRAINING):
                        self._compare(mode, given, index)
        finally:
            for each, before in modes_before.items():
                each.training = before
        return self.result(
            batches,
            faults=faults,
            source_parameters=learned,
            parameters_equal=not faults and learned == self.graph.totals.parameters,
        )

    def _parameter_faults(self) -> tuple[list[str], int]:
        """Faults of the learned parameters, and the number of elements that the module learns."""
        torch = self.torch
        own = dict(self.source.module.named_parameters(remove_duplicate=False))
        ours = self.learned()
        faults = []
        for name in ours:
            if name not in own:
                faults.append(f"it learns {name!r}, which the module does not have")
            elif not own[name].requires_grad:
                faults.append(f"it learns {name!r}, which is frozen")
            elif name in self.graph.values:
                value = own[name].detach()
                first = torch.from_numpy(self.graph.values[name].copy()).to(value.dtype)
                if first.shape != value.shape or not torch.equal(first, value):
                    faults.append(f"{name!r} does not begin with the module's values")
        seen = {id(each): each for each in own.values() if each.requires_grad}
        return faults, sum(each.numel() for each in seen.values())

    def _moved_values(self) -> dict[str, Any]:
        """The module's state, with learned values and the network's statistics changed a little.

        Buffers with which the import has computed are constants, whatever their names.
        """
        torch = self.torch
        generator = torch.Generator().manual_seed(0)

        def noise(value: Any) -> Any:
            drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            return drawn.to(value.dtype)

        values = self._values()
        kept = {id(values[name]) for name in initial_weights(self.graph) if name in values}
        state = {}
        for name, value in self._values(once=True).items():
            learned, own = value.requires_grad, id(value) in kept
            value = value.detach().clone()
            if value.is_floating_point():
                value = value.to(self.dtype)
                if learned:
                    size = float(value.double().square().mean().sqrt())
                    value = value.add(noise(value), alpha=0.1 * size + 0.01)
                elif own and name.endswith("running_mean"):
                    value = value.add(noise(value), alpha=0.1)
                elif own and name.endswith("running_var"):
                    value = value.mul(1 + 0.1 * noise(value).tanh())
            state[name] = value
        return state

    def _by_every_name(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state in which shared values appear under all of their names."""
        values = self._values()
        first = {id(values[name]): value for name, value in state.items()}
        return {name: first[id(value)] for name, value in values.items()}

    def _values(self, *, once: bool = False) -> dict[str, Any]:
        """The module's parameters and buffers under all of their names, or each under one name."""
        module = self.source.module
        return {
            name: value
            for each in (module.named_parameters, module.named_buffers)
            for name, value in each(remove_duplicate=once)
        }

    def _by_every_place(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state under one name for each attribute of a submodule that holds a value.

        Under each of the names of a submodule that is there several times, PyTorch would replace
        the value and keep what it found as the original, so the module would not get its own back.
        """
        named = self._by_every_name(state)
        return {
            name: named[name]
            for stem, each in self.source.module.named_modules()
            for values in (each.named_parameters, each.named_buffers)
            for name, _ in values(stem, recurse=False, remove_duplicate=False)
        }

    def _weights(self) -> dict[str, Any]:
        """The module's values by the network's names, and the network's own where it has none."""
        state = self._by_every_name(self.state)
        weights = {}
        for name, first in initial_weights(self.graph).items():
            value = state.get(name)
            if value is None:
                weights[name] = first.to(self.dtype) if first.is_floating_point() else first
                continue
            if value.shape != first.shape:
                raise NotRunError(f"{name!r} has another shape in the module")
            weights[name] = value.contiguous()
        return weights

    def _compare(self, mode: str, given: dict[str, Any], index: int) -> None:
        """Compare the results of a batch, and in training also gradients and statistics."""
        torch = self.torch
        training = mode == TRAINING
        expected, state = self._of_module(self.state, given, index, training=training)
        leaves = {
            name: self.weights[name].detach().requires_grad_(training) for name in self.learned()
        }
        others = {name: each for name, each in self.weights.items() if name not in leaves}
        weights = {name: each.clone() for name, each in others.items()} | leaves
        torch.manual_seed(index)
        given = {name: each.clone() for name, each in given.items()}
        values = self.computed(weights, given, training)
        here = self.graph if training else self.graph.evaluated
        outputs = [name for name in self.source.outputs if name in here.outputs]
        found = [values[name] for name in outputs]
        if len(found) != len(expected):
            raise NetworkError(
                f"{self.graph.name}: gives {len(found)} results in {mode}, the module "
                f"{len(expected)}"
            )
        for name, one, two in zip(outputs, found, expected, strict=True):
            self.held(mode, name, one, two, FLOOR[self.precision])
        if training:
            theirs = self._by_every_name(state)
            own = {name: each for name, each in theirs.items() if each.requires_grad}
            nearby = partial(self._gradients_nearby, given, index)
            self._compare_gradients(own, expected, leaves, found, nearby)
            for name, value in weights.items():
                if name in theirs and name not in own and name not in leaves:
                    self.held("statistics", name, value, theirs[name])

    def _of_module(
        self, values: Mapping[str, Any], given: dict[str, Any], index: int, *, training: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        """The module's results, and the state with which it ran, which has its statistics."""
        torch = self.torch
        learned = {n for n, p in self.source.module.named_parameters() if p.requires_grad}
        state = {
            name: value.detach().requires_grad_(training) if name in learned else value.clone()
            for name, value in values.items()
        }
        torch.manual_seed(index)
        try:
            with in_precision(torch, self.source.module, self.dtype):
                results = torch.func.functional_call(
                    self.source.module,
                    self._by_every_place(state),
                    self._arguments(given),
                    tie_weights=False,
                )
        except Exception as error:  # any error of the module in this precision
            raise NotRunError(
                f"the module does not run in {self.precision}: {_first_line(error)}"
            ) from None
        return self._flat(results), state

    def _gradients_nearby(self, given: dict[str, Any], index: int) -> dict[str, Any]:
        """The module's gradients for a state that differs by some roundings."""
        torch = self.torch
        generator = torch.Generator().manual_seed(index)
        size = SHAKEN * torch.finfo(self.dtype).eps

        def shaken(value: Any) -> Any:
            if not value.is_floating_point():
                return value
            drawn = torch.rand(value.shape, generator=generator, dtype=torch.float64)
            return (value * (1 + size * (2 * drawn - 1))).to(value.dtype)

        values = {name: shaken(value.detach()) for name, value in self.state.items()}
        results, state = self._of_module(values, given, index, training=True)
        named = self._by_every_name(state)
        own = {name: each for name, each in named.items() if each.requires_grad}
        return self._gradients(results, own)[0]

    def _compare_gradients(
        self,
        own: dict[str, Any],
        expected: list[Any],
        leaves: dict[str, Any],
        found: list[Any],
        nearby: Callable[[], dict[str, Any]],
    ) -> None:
        """Compare the gradients of a randomly weighted sum of all results.

        A difference that is small beside the largest gradient, and that the gradients `nearby` have
        as well, is the rounding of terms that cancel.
        """
        torch = self.torch
        theirs, weight = self._gradients(expected, own)
        ours, _ = self._gradients(found, leaves)
        size = max((float(each.norm()) for each in theirs.values()), default=0.0)
        least = max(FLOOR[self.precision] * size, ZERO[self.precision] * weight)
        seen = {id(own[name]) for name in ours if name in own}
        others: dict[str, Any] | None = None
        for name, value in theirs.items():
            if name not in ours:
                if id(own[name]) not in seen and float(value.norm()) > least:
                    self.errors.setdefault("gradients", {})[name] = float("inf")
                continue
            apart, limit = float((ours[name] - value).norm()), TOLERANCES[self.precision]
            floor = least
            if limit * max(float(value.norm()), least) < apart <= limit * size:
                others = nearby() if others is None else others
                floor = max(least, SPREADS * float((others[name] - value).norm()) / limit)
            self.held("gradients", name, ours[name], value, floor)
        for name, value in ours.items():
            if name not in theirs:
                self.held("gradients", name, value, torch.zeros_like(value), least)

    def _gradients(
        self, results: list[Any], leaves: dict[str, Any]
    ) -> tuple[dict[str, Any], float]:
        """Gradients of a randomly weighted sum of all results, and the norm of the weights."""
        torch = self.torch
        generator = torch.Generator().manual_seed(1)
        loss, squares = torch.zeros((), dtype=self.dtype), 0.0
        for each in results:
            drawn = torch.randn(each.shape, generator=generator, dtype=torch.float64)
            if each.is_floating_point():
                loss = loss + (each * drawn.to(each.dtype)).sum().to(self.dtype)
                squares += float(drawn.square().sum())
        if not loss.requires_grad or not leaves:
            return {name: torch.zeros_like(each) for name, each in leaves.items()}, 0.0
        try:
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        except RuntimeError as error:
            raise NotRunError(f"there are no gradients: {_first_line(error)}") from None
        gradients = {
            name: torch.zeros_like(leaf) if gradient is None else gradient
            for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
        }
        return gradients, math.sqrt(squares)

    def _arguments(self, given: dict[str, Any]) -> Any:
        """Arrange the inputs in the nested structure with which the module was exported."""
        from torch.utils._pytree import tree_map

        left = iter(given.values())
        is_tensor = self.torch.is_tensor
        return tree_map(
            lambda each: next(left).clone() if is_tensor(each) else each, self.source.inputs
        )

    def _flat(self, value: Any) -> list[Any]:
        """The tensors of a nested value."""
        from torch.utils._pytree import tree_leaves

        return [each for each in tree_leaves(value) if self.torch.is_tensor(each)]


class _Model(Side):
    """Compares a network with the ONNX model that it was imported from."""

    name = "ONNX's reference evaluator"
    source: OnnxSource

    def evaluate(self) -> Evaluate:
        """A function that runs the model."""
        return evaluator(self.source.path, double=self.precision == "float64")

    def run(self, batches: int, modes: Sequence[str]) -> Verification:
        """Compare some batches; an ONNX model is run only in evaluation."""
        torch = self.torch
        try:
            evaluate = self.evaluate()
        except UserError as error:
            raise NotRunError(str(error)) from None
        weights = {
            name: each.to(self.dtype) if each.is_floating_point() else each
            for name, each in initial_weights(self.graph).items()
        }
        for index in range(batches):
            given = self.inputs(index)
            try:
                expected = evaluate({name: each.numpy() for name, each in given.items()})
            except UserError as error:
                raise NotRunError(str(error)) from None
            with torch.no_grad():
                values = self.computed(weights, given, False)
            for name, value in zip(self.source.outputs, expected, strict=True):
                self.held(EVALUATION, name, values[name], torch.from_numpy(value.copy()))
        return self.result(batches)


class _RuntimeModel(_Model):
    """Compares a network with its ONNX model in onnxruntime.

    ONNX's reference evaluator lacks operators and has faults, so it does not decide alone.
    """

    name = "onnxruntime"

    def evaluate(self) -> Evaluate:
        """A function that runs the model."""
        return runtime(self.source.path)


def _first_line(error: Exception) -> str:
    """The beginning of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

"""The backend that runs steps in PyTorch, on a processor or a GPU: a reference for the devices."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.backends.base import StepResult, StepRunner
from fpgapipe.host.backends.torch_late import WeightHistory
from fpgapipe.host.backends.torch_loss import loss_of, num_correct
from fpgapipe.host.backends.torch_reference import cuda_fault, forward, gradients_of
from fpgapipe.lowering.kernels.clipping import CLIP_EPSILON
from fpgapipe.lowering.units.network_units import check_network, drop_factors_of
from fpgapipe.lowering.units.step_options import SUFFIXES, Scalar, StepOptions
from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import labels_of, target_shape, total_of
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import Values
    from fpgapipe.lowering.memory.memory_map import Labels
    from fpgapipe.lowering.schedule.weight_versions import LateWeights
    from fpgapipe.network.graph import Graph
    from fpgapipe.network.losses import Loss

Precision = Literal["fp32", "bf16", "mxint8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

GRADIENT, MOMENTUM, SQUARE = (suffix for suffix in SUFFIXES.values() if suffix)


class TorchBackend(StepRunner):
    """Runs steps in PyTorch that compute the same as steps on devices.

    The micro-batches go through the network one after the other, so that batch normalisation uses
    the statistics of a micro-batch. The loss is the mean over the mini-batch, gradients are summed
    over the micro-batches, and there is one update, by SGD with momentum, Adam or AdamW, in FP32;
    or each micro-batch has an update, and passes see late weights. The scalars and the random
    numbers of dropout are those of the devices.

    The precision selects the number formats of the passes:

    * ``fp32``: all values are FP32. TF32 is off.
    * ``bf16``: PyTorch's autocast. Convolutions and linear layers round both operands and the
      result to BF16 and add up in FP32, in all passes, and the layers after them compute with BF16
      activations. Weights, their gradients, the loss and the update are FP32.
    * ``mxint8``: the core's number formats (`fpgapipe.host.backends.torch_core`). Matrix products
      have the bits of the devices. The order of other FP32 sums, such as those over positions, and
      the last bits of functions differ.

    Steps repeat bit for bit on one machine, because PyTorch is restricted to algorithms that it
    declares deterministic and to a fixed number of threads. Another kind of processor or GPU,
    another release of PyTorch or another number of threads may change the last bits.

    Parameters
    ----------
    graph : Graph
        Network for the samples of one micro-batch.
    parameters : mapping of str to array
        Initial parameters.
    num_microbatches : int
        Number of micro-batches in a mini-batch.
    options : StepOptions, optional
        Optimiser and clipping; for ``mxint8`` also the format to which activations are rounded.
    precision : str
        ``fp32``, ``bf16`` or ``mxint8``.
    device : str
        ``cpu``, ``cuda``, ``cuda:1``, or ``auto``, which is a GPU if PyTorch sees one.
    late : LateWeights, optional
        Updates before each pass, if the weights are updated after each micro-batch.
    threads : int
        Number of threads on a processor; small networks gain nothing from more than one.
    parts : mapping of str to (int, tuple of int), optional
        For ``mxint8``, products that are cut over devices; see `torch_core.CoreNumbers`.
    array_rows : mapping of str to sequence of int, optional
        For ``mxint8``, the rows of the arrays that compute a layer's products, one for each device
        that does, from `fpgapipe.lowering.program.array_rows`; 32 where nothing is given.

    Attributes
    ----------
    memories : list of uint8 arrays
        One array, with parameters, gradients and optimiser state one after the other, in FP32.

    Raises
    ------
    UserError
        If PyTorch is not installed or does not see the GPU, or if the network has a layer that the
        core does not run.
    ValueError
        If a parameter is missing or has another shape, or there is no such precision.
    """

    name = "torch"

    def __init__(
        self,
        graph: Graph,
        parameters: Values,
        *,
        num_microbatches: int = 1,
        options: StepOptions | None = None,
        precision: Precision = "fp32",
        device: str = "auto",
        late: LateWeights | None = None,
        threads: int = 1,
        parts: Mapping[str, tuple[int, tuple[int, ...]]] | None = None,
        array_rows: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        require("torch", "the PyTorch backend")
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
        if num_microbatches < 1:
            raise ValueError(f"num_microbatches must be at least 1, not {num_microbatches}")
        options = options or StepOptions()
        check_network(graph, train=options.train, loss=options.loss)
        self.graph = graph
        self.precision = precision
        self.device = choose_device(device)
        self._options = options
        self._losses = options.loss.of_each(graph)
        self._undecayed = options.without_decay(graph)
        self.num_microbatches = num_microbatches
        self._threads = threads
        self._trains = {
            p.name: p.spec.trainable for layer in graph.layers.values() for p in layer.parameters
        }
        self._state = self._places(
            {p.name: p.shape for layer in graph.layers.values() for p in layer.parameters}
        )
        for name in self._trains:
            self._set(name, parameters)
        self._late = late
        self._history = WeightHistory(graph, late, self._learned) if late else None
        self.num_updates = num_microbatches if late else 1
        if precision == "mxint8":
            from fpgapipe.host.backends.torch_core import CoreNumbers

            self._core = CoreNumbers(graph, self._options.activations, parts, array_rows)

    def _places(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
        """Allocate the memory; return its parts by name."""
        suffixes = [GRADIENT, MOMENTUM]
        if self._options.has_second_moment:
            suffixes.append(SQUARE)
        parts = [
            (name + suffix, shape)
            for suffix in ("", *suffixes)
            for name, shape in shapes.items()
            if not suffix or self._trains[name]
        ]
        sizes = [int(np.prod(shape)) for _, shape in parts]
        whole = np.zeros(sum(sizes), np.float32)
        self.memories = [whole.view(np.uint8)]
        ends = np.cumsum(sizes)
        return {
            name: whole[end - size : end].reshape(shape)
            for (name, shape), size, end in zip(parts, sizes, ends, strict=True)
        }

    def close(self) -> None:
        """See `StepRunner`; there is nothing to release."""

    def step(
        self,
        inputs: Values,
        labels: Labels,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> StepResult:
        """See `StepRunner`; no cycles are counted.

        Raises
        ------
        ValueError
            If an input has another shape, or there is another number of labels.
        """
        import torch

        given, classes = self._batch(inputs, labels)
        counted = [
            total_of(labels_of(labels, name), loss.class_weights) / self.num_microbatches
            for name, loss in self._losses.items()
        ]
        state = self._tensors()
        weights = {name: state[name] for name in self._trains}
        sums = {name: state[name + GRADIENT].zero_() for name in self._learned}
        outcomes: list[list[tuple[float, int]]] = []
        if self._history:
            self._history.begin(state)
        with _repeatable(self.device, self._threads):
            for index in range(self.num_microbatches):
                part = {name: parts[index] for name, parts in given.items()}
                late = None
                if self._history:
                    weights = {**weights, **self._history.forward(index)}
                    late = self._history.backward(index)
                factors = self._factors(scalars, index)
                own = [each[index] for each in classes]
                found, gradients = self._passes(weights, part, own, factors, counted, late)
                outcomes.append(found)
                for name, gradient in gradients.items():
                    if self._history:
                        sums[name].copy_(gradient)
                    else:
                        sums[name].add_(gradient)
                if self._history:
                    with torch.no_grad():
                        self._update(state, sums, scalars)
                    self._history.add(state)
            if not self._history:
                with torch.no_grad():
                    self._update(state, sums, scalars)
        self._keep(state)
        return self._result(
            [
                (sum(loss for loss, _ in each) / len(each), sum(right for _, right in each))
                for each in zip(*outcomes, strict=True)
            ]
        )

    def _result(self, outcomes: Sequence[tuple[float, int]]) -> StepResult:
        """The result of a step, from loss and right labels of each output."""
        loss = sum(
            own.weight * value
            for own, (value, _) in zip(self._losses.values(), outcomes, strict=True)
        )
        right = next(
            (
                correct
                for own, (_, correct) in zip(self._losses.values(), outcomes, strict=True)
                if own.has_classes
            ),
            0,
        )
        several = dict(zip(self._losses, outcomes, strict=True)) if len(outcomes) > 1 else {}
        return StepResult(loss, right, None, several)

    def infer(
        self,
        inputs: Values,
        scalars: Sequence[int] = (),
        *,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[dict[str, NDArray[np.float32]], int | None]:
        """See `StepRunner`; takes any number of samples, counts no cycles, ignores the scalars."""
        return self.results(inputs), None

    def results(self, inputs: Values) -> dict[str, NDArray[np.float32]]:
        """Compute the network's outputs as inference does, for any number of samples."""
        import torch

        state = self._tensors()

        def run(part: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.float32]]:
            with torch.no_grad(), _repeatable(self.device, self._threads), self._autocast():
                if self.precision == "mxint8":
                    values = self._core.infer(state, part)
                else:
                    values = forward(self.graph, state, part)
            return {name: values[name].float().cpu().numpy() for name in self.graph.outputs}

        if not inputs:  # what is computed from learned tensors alone has no samples
            return run({})
        samples = len(next(iter(inputs.values())))
        size = self.graph.batch or samples
        found = []
        for first in range(0, samples, size):
            # Layers may have the batch size in their shapes, so the last batch is filled up.
            order = np.minimum(np.arange(first, first + size), samples - 1)
            found.append(run({name: self._tensor(each[order]) for name, each in inputs.items()}))
        return {
            name: np.concatenate([each[name] for each in found])[:samples]
            for name in self.graph.outputs
        }

    def evaluate(self, inputs: Values, labels: Labels) -> StepResult:
        """Infer any number of samples; return their mean loss and how many labels are right.

        Auxiliary outputs count as others do.
        """
        import torch

        results = self.results(inputs)
        outcomes = []
        for name, loss in self._losses.items():
            values = torch.from_numpy(results[name])
            own = torch.from_numpy(_typed(labels_of(labels, name), loss))
            outcomes.append((float(loss_of(loss, values, own)), num_correct(loss, values, own)))
        return self._result(outcomes)

    def parameters(self, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """See `StepRunner`; with a suffix, ``.gradient``, ``.momentum`` or ``.square``."""
        names = self._learned if suffix else list(self._trains)
        return {name: self._state[name + suffix].copy() for name in names}

    def state(self) -> dict[str, NDArray[np.float32]]:
        """See `StepRunner`."""
        return {
            name: value.copy() for name, value in self._state.items() if not name.endswith(GRADIENT)
        }

    def set_state(self, state: Values) -> None:
        """See `StepRunner`."""
        for name in self.state():
            self._set(name, state)

    @contextmanager
    def disturbed(self, seed: int) -> Iterator[bool]:
        """See `StepRunner`; only the core's number formats round values that can be turned over."""
        import torch

        if self.precision != "mxint8":
            yield False
            return
        kept = self.memories[0].copy()
        self._core.noise = torch.Generator(self.device).manual_seed(seed)
        try:
            yield True
        finally:
            self._core.noise = None
            self.memories[0][:] = kept

    def other_versions(self) -> Iterator[str]:
        """See `StepRunner`."""
        if self._late is None:
            return
        own, kept = self._history, self.memories[0].copy()
        try:
            for text, late in self._late.others():
                self._history = WeightHistory(self.graph, late, self._learned)
                yield text
        finally:
            self._history = own
            self.memories[0][:] = kept

    def _set(self, name: str, values: Values) -> None:
        """Write a part of the memory."""
        own = self._state[name]
        if name not in values or values[name].shape != own.shape:
            came = values[name].shape if name in values else "nothing"
            raise ValueError(f"parameter {name} must have shape {own.shape}, not {came}")
        own[...] = values[name]

    # ------------------------------------------------------------------ a step's parts

    @property
    def _learned(self) -> list[str]:
        return [name for name, trains in self._trains.items() if trains]

    def _batch(
        self, inputs: Values, labels: Labels
    ) -> tuple[dict[str, tuple[torch.Tensor, ...]], list[tuple[torch.Tensor, ...]]]:
        """Inputs of each micro-batch, and its labels for each output."""
        count = self.num_microbatches
        given = {}
        for name, tensor in self.graph.inputs.items():
            shape = (tensor.shape[0] * count, *tensor.shape[1:])
            if name not in inputs or inputs[name].shape != shape:
                came = inputs[name].shape if name in inputs else "nothing"
                raise ValueError(f"input {name} must have shape {shape}, not {came}")
            given[name] = self._tensor(inputs[name]).chunk(count)
        classes = []
        for output, loss in self._losses.items():
            own = labels_of(labels, output)
            samples, *rest = (
                Logits.of(self.graph, output).label_shape
                if loss.has_classes
                else target_shape(self.graph, output)
            )
            if own.shape != (samples * count, *rest):
                raise ValueError(
                    f"labels must have shape {(samples * count, *rest)}, not {own.shape}"
                )
            classes.append(self._tensor(_typed(own, loss)).chunk(count))
        return given, classes

    def _factors(self, scalars: Sequence[int], index: int) -> dict[str, torch.Tensor]:
        """Factors by which the dropout layers multiply a micro-batch, by layer."""
        key = scalars[Scalar.RANDOM_SEED : Scalar.RANDOM_STEP + 1]
        return {
            name: self._tensor(factors)
            for name, factors in drop_factors_of(self.graph, key, index).items()
        }

    def _passes(
        self,
        weights: dict[str, torch.Tensor],
        inputs: dict[str, torch.Tensor],
        classes: Sequence[torch.Tensor],
        factors: dict[str, torch.Tensor],
        counted: Sequence[float],
        late: dict[str, torch.Tensor] | None = None,
    ) -> tuple[list[tuple[float, int]], dict[str, torch.Tensor]]:
        """Forward and backward pass of a micro-batch: loss and right labels of outputs, gradients.

        So many labels of a micro-batch count, in the mean over the mini-batch. The backward pass
        uses the parameters `late` where they are given.
        """
        outcome: list[tuple[float, int]] = []

        def value_of(*outputs: torch.Tensor) -> torch.Tensor:
            parts = []
            outcome.clear()
            for loss, output, own, count in zip(
                self._losses.values(), outputs, classes, counted, strict=True
            ):
                value = loss_of(loss, output, own, count)
                right = num_correct(loss, output.detach().float(), own)
                outcome.append((float(value.detach()), right))
                parts.append(value * (loss.weight / self.num_microbatches))
            return sum(parts[1:], parts[0])

        if self.precision == "mxint8":
            gradients = self._core.train(weights, inputs, factors, value_of, late)
        else:
            gradients = gradients_of(
                self.graph, weights, inputs, factors, value_of,
                autocast=self._autocast(), backward=late,
            )  # fmt: skip
        return outcome, gradients

    def _autocast(self) -> Any:
        import torch

        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def _update(
        self, state: dict[str, torch.Tensor], sums: dict[str, torch.Tensor], scalars: Sequence[int]
    ) -> None:
        """Do the optimiser's update, each operation rounded to FP32 as on the devices."""
        import torch

        numbers = np.array(scalars, np.uint32).view(np.float32)
        clip = 1.0
        if self._options.clips:
            norm = torch.stack([gradient.square().sum() for gradient in sums.values()]).sum().sqrt()
            clip = float((float(numbers[Scalar.MAX_NORM]) / (norm + CLIP_EPSILON)).clamp(max=1))
        for name, gradient in sums.items():
            weight, first = state[name], state[name + MOMENTUM]
            change = gradient * clip
            decays = name not in self._undecayed
            if decays and self._options.optimiser == "adamw":
                weight.mul_(float(numbers[Scalar.KEPT_SHARE]))
            elif decays:
                change += weight * float(numbers[Scalar.WEIGHT_DECAY])
            if self._options.optimiser == "sgd":
                first.copy_(change + first * float(numbers[Scalar.MOMENTUM]))
                weight.sub_(first * float(numbers[Scalar.LEARNING_RATE]))
                continue
            second, (one, two) = state[name + SQUARE], self._options.betas
            first.copy_(change * (1 - one) + first * one)
            second.add_((change * change - second) * (1 - two))
            root = second.sqrt() * float(numbers[Scalar.INVERSE_CORRECTION])
            inverse = 1 / (root + self._options.epsilon)
            weight.sub_(first * inverse * float(numbers[Scalar.STEP_SIZE]))

    # ------------------------------------------------------------------ memory

    def _tensor(self, values: NDArray[Any]) -> torch.Tensor:
        """Copy values to the device."""
        import torch

        return torch.from_numpy(np.array(values)).to(self.device)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Copies of the memory's parts on the GPU; on a processor, views of the memory itself."""
        import torch

        return {
            name: torch.from_numpy(value).to(self.device) for name, value in self._state.items()
        }

    def _keep(self, state: dict[str, torch.Tensor]) -> None:
        """Copy what a step has changed from a GPU back to the memory."""
        if self.device.type != "cpu":
            for name, value in self._state.items():
                value[...] = state[name].cpu().numpy()


class TorchMxBackend(TorchBackend):
    """`TorchBackend` with the precision ``mxint8``, under a name of its own."""

    name = "torch-mx"


def _typed(labels: NDArray[Any], loss: Loss) -> NDArray[Any]:
    """Class numbers or targets, in the type that PyTorch's losses take."""
    return labels.astype(np.int64 if loss.has_classes else np.float32)


def choose_device(name: str) -> torch.device:
    """Find a device by its name; `auto` is a GPU if PyTorch sees one, else the processor.

    Raises
    ------
    UserError
        If there is no such device, or PyTorch cannot compute on it.
    """
    import torch

    if name == "auto":
        return torch.device("cpu" if cuda_fault() else "cuda")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise UserError(f"torch device must be auto, cpu, cuda or cuda:NUMBER, not {name!r}")
    if kind == "cuda":
        fault = cuda_fault()
        if fault:
            raise UserError(f"torch device {name} needs a GPU, but {fault}; use cpu")
        count = torch.cuda.device_count()
        if int(number or 0) >= count:
            raise UserError(f"torch device {name} must be one of {count}, cuda:0 first")
    return torch.device(name)


@contextmanager
def _repeatable(device: torch.device, threads: int) -> Iterator[None]:
    """Restrict PyTorch to deterministic algorithms, and switch TF32 off."""
    import torch

    if device.type == "cuda":
        # cuBLAS reads this variable when it is first used. Without it, PyTorch refuses products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    precision = torch.get_float32_matmul_precision()
    num_threads = torch.get_num_threads()
    if device.type == "cuda" or threads > 1:  # one thread of a processor adds in one order
        torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(threads)
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ):
            yield
    finally:
        torch.set_num_threads(num_threads)
        torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != before:
            torch.use_deterministic_algorithms(before, warn_only=warns)

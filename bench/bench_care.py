"""Checks that small modules that need care are computed correctly, or refused with a reason.

Every module of ``bench/care`` is imported and compared with PyTorch: outputs in evaluation and
training, gradients, and which parameters learn. If it can be built, its inference and one training
step run in the bit-exact model and are compared with the module itself, in FP32, and with PyTorch
with the core's numbers.

``--through onnx`` exports every module to ONNX first, ``--through onnx-old`` with PyTorch's older
exporter. A model of ONNX has no gradients and no names of the module, so its outputs in evaluation
are compared with the module's, in the import and in the bit-exact model, and a training step in the
model with PyTorch with the core's numbers.

Prints one JSON object: counts of the verdicts, and the verdict of each module with its reason or
largest error. Exits with 1 if a module is wrong or ends in an error that is no refusal.
``--only WORD`` runs the modules with the word in their names.
"""

import argparse
import contextlib
import copy
import functools
import io
import json
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from care import aliasing, composed, layouts, operators, sharing
from care.case import Case

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.backends.torch_reference import forward, initial_weights
from fpgapipe.host.backends.verification import verify
from fpgapipe.host.runtime.numeric_check import NumericCheck
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.frontends.source import TorchSource
from fpgapipe.network.frontends.torch.torch_program import from_torch
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network
from fpgapipe.network.logits import Logits
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

CASES: dict[str, Case] = {
    f"{module.__name__.removeprefix('care.')}: {name}": case
    for module in (aliasing, sharing, layouts, operators, composed)
    for name, case in module.CASES.items()
}
CORE = CoreSpec(8, 8, acc_depth=256, scratchpad=ScratchpadSpec(8, 1 << 14), vector=VectorSpec(4, 2))
EXACT = 1e-4
"""Largest difference of FP32 sums in another order, relative to the norm of all values."""
ROUNDED = 0.5
"""Largest difference by norm between gradients in MXINT8 and FP32, which ReLUs and maxima enlarge.

A wrong gradient differs by more than 0.6."""
LOSS = 0.03
"""Largest difference between losses in MXINT8 and FP32; correct networks have 0.003 to 0.013."""
NUM_BATCHES = 2
REFUSALS = (UserError, NotImplementedError)


class WrongError(Exception):
    """The result differs from that of PyTorch."""


class ExportError(Exception):
    """PyTorch does not export the module, or exports something else."""


def tensors_of(output: Any) -> list[torch.Tensor]:
    """Outputs of a module in the order in which it gives them."""
    if isinstance(output, torch.Tensor):
        return [output]
    each = output.values() if isinstance(output, dict) else output
    return [tensor for one in each for tensor in tensors_of(one)]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference relative to the expected values' norm."""
    if found.shape != expected.shape:
        raise WrongError(f"shape {tuple(found.shape)} for {tuple(expected.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-6))


def held(what: str, found: torch.Tensor, expected: torch.Tensor, limit: float) -> float:
    """Return the distance; raise `WrongError` if it is over the limit or not a number."""
    error = distance(found, expected)
    if not error <= limit:
        raise WrongError(f"{what} is off by {error:.3g}")
    return error


class Source:
    """A module with its first state, which can be run any number of times.

    Parameters
    ----------
    module : nn.Module
    has_mode : bool
        Whether what is imported has a mode of its own. An ONNX model has none: one that drops was
        exported for training, and drops nothing in evaluation (docs/networks.md), so the module
        drops nothing there either.
    """

    def __init__(self, module: torch.nn.Module, *, has_mode: bool = True) -> None:
        self.module = module
        self._has_mode = has_mode

    def run(
        self, inputs: list[torch.Tensor], *, training: bool, seed: int = 7
    ) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        """Run a copy; returns the copy and its outputs."""
        module = copy.deepcopy(self.module).train(training)
        torch.manual_seed(seed)
        dropout = torch.nn.functional.dropout
        if not training and not self._has_mode:
            torch.nn.functional.dropout = lambda x, *_, **__: x
        try:
            return module, tensors_of(module(*(each.clone() for each in inputs)))
        finally:
            torch.nn.functional.dropout = dropout

    def gradients(
        self, inputs: list[torch.Tensor], loss_of: Any
    ) -> tuple[float, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Loss, gradients by parameter and buffers after a training pass."""
        module, outputs = self.run(inputs, training=True)
        loss = loss_of(outputs)
        if loss.requires_grad:
            loss.backward()
        found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        return float(loss.detach()), found, dict(module.named_buffers())


def batches(case: Case) -> list[list[torch.Tensor]]:
    """Inputs for the comparisons."""
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(shape, generator=generator) for shape in case.shapes]
        for _ in range(NUM_BATCHES)
    ]


def given_to(graph: Graph, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inputs by the graph's names; it may have fewer, when some are not used."""
    given: dict[str, torch.Tensor] = {}
    left = list(inputs)
    for name, tensor in graph.inputs.items():
        index = next(i for i, each in enumerate(left) if tuple(each.shape) == tensor.shape)
        given[name] = left.pop(index)
    return given


def copied(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of weights, since a training pass moves running statistics."""
    return {name: each.clone() for name, each in weights.items()}


def check_import(case: Case, source: Source, graph: Graph) -> float:
    """Compare the graph with its source; returns the largest error."""
    learned = {
        p.name for layer in graph.layers.values() for p in layer.parameters if p.spec.trainable
    }
    asked = {name for name, p in source.module.named_parameters() if p.requires_grad}
    if learned - asked:
        raise WrongError(f"learns {', '.join(sorted(learned - asked))}, which the module does not")
    worst = 0.0
    weights = initial_weights(graph)
    for inputs in batches(case):
        given = given_to(graph, inputs)
        for training in (False, True):
            if training and case.random:
                continue
            _, expected = source.run(inputs, training=training)
            _, again = source.run(inputs, training=training, seed=8)
            if any(not torch.equal(one, two) for one, two in zip(expected, again, strict=True)):
                raise WrongError("a module that draws random numbers was imported as fixed")
            values = forward(graph, copied(weights), given, training=training)
            found = [values.get(name, given.get(name)) for name in graph.outputs]
            if len(found) != len(expected):
                raise WrongError(f"{len(found)} outputs for {len(expected)}")
            mode = "training" if training else "evaluation"
            for one, two in zip(found, expected, strict=True):
                worst = max(worst, held(f"output in {mode}", one, two, EXACT))
        if case.random:
            continue
        worst = max(worst, check_gradients(source, graph, weights, inputs, learned))
    return worst


def check_gradients(
    source: Source,
    graph: Graph,
    weights: dict[str, torch.Tensor],
    inputs: list[torch.Tensor],
    learned: set[str],
) -> float:
    """Compare gradients of a random sum of the outputs with those of the source."""

    def loss_of(outputs: list[torch.Tensor]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return sum(
            ((each * torch.randn(each.shape, generator=generator)).sum() for each in outputs),
            start=torch.zeros(()),
        )

    _, expected, _ = source.gradients(inputs, loss_of)
    missing = [name for name, g in expected.items() if name not in learned and float(g.norm()) > 0]
    if missing:
        raise WrongError(f"does not learn {', '.join(missing)}")
    leaves = {name: weights[name].detach().clone().requires_grad_() for name in learned}
    given = given_to(graph, inputs)
    values = forward(graph, {**copied(weights), **leaves}, given, training=True)
    loss = loss_of([values.get(name, given.get(name)) for name in graph.outputs])
    if not leaves or not loss.requires_grad:
        return 0.0
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    size = max(float(each.norm()) for each in expected.values()) if expected else 1.0
    worst = 0.0
    for name, gradient in zip(leaves, found, strict=True):
        one = torch.zeros_like(leaves[name]) if gradient is None else gradient
        two = expected.get(name, torch.zeros_like(one))
        error = float((one.double() - two.double()).norm()) / max(float(two.norm()), 1e-3 * size)
        if not error <= 10 * EXACT:
            raise WrongError(f"gradient of {name} is off by {error:.3g}")
        worst = max(worst, error)
    return worst


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Folder of the exported model, which its verification reads again."""
    return tempfile.TemporaryDirectory()


def imported(source: Source, example: tuple[torch.Tensor, ...], through: str) -> Graph:
    """Import a module, perhaps through a model of ONNX.

    Raises
    ------
    ExportError
        If PyTorch does not export the module.
    """
    module = copy.deepcopy(source.module)
    if through == "torch":
        return from_torch((module, example), name="care")
    path = str(Path(folder().name) / "care.onnx")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(module.eval(), example, path, dynamo=through == "onnx")
    except Exception as error:  # exporters have no common base class of errors
        raise ExportError(" ".join(str(error).split())[:160]) from None
    return load_network(path)


def check_evaluation(case: Case, source: Source, graph: Graph) -> float:
    """Compare the graph with the ONNX model and with the source; returns the largest error.

    Raises
    ------
    WrongError
        If it is not what the ONNX model computes.
    ExportError
        If it is, and the module computes something else.
    """
    result = verify(graph, batches=1)
    if result.verified is False:
        raise WrongError(result.reason)
    worst = 0.0
    weights = initial_weights(graph)
    for inputs in batches(case):
        _, expected = source.run(inputs, training=False)
        values = forward(graph, copied(weights), given_to(graph, inputs), training=False)
        for name, two in zip(graph.outputs, expected, strict=True):
            try:
                worst = max(worst, held("output in evaluation", values[name], two, EXACT))
            except WrongError as error:
                if result.verified:
                    raise ExportError(f"the exported model computes otherwise: {error}") from None
                raise
    return worst


def check_inference(case: Case, source: Source, graph: Graph) -> None:
    """Compare inference in the bit-exact model with the source."""
    options = StepOptions(activations=FP32, train=False)
    pipeline = build_pipeline(
        graph, [CORE], [list(graph.layers)], make_schedule("gpipe", 1, 1), options=options
    )
    values = {name: each.numpy() for name, each in initial_weights(graph).items()}
    with ModelBackend(pipeline, values) as backend:
        for inputs in batches(case):
            given = {name: each.numpy() for name, each in given_to(graph, inputs).items()}
            found, _ = backend.infer(given, scalar_bits())
            _, expected = source.run(inputs, training=False)
            for name, two in zip(graph.outputs, expected, strict=True):
                held("inference", torch.tensor(found[name]), two, 0.1)


def check_step(case: Case, source: Source, graph: Graph) -> float:
    """Compare a training step of the bit-exact model with the source; returns the largest error."""
    options = StepOptions(activations=FP32)
    pipeline = build_pipeline(
        graph, [CORE], [list(graph.layers)], make_schedule("1f1b", 1, 1), options=options
    )
    values = {name: each.numpy() for name, each in initial_weights(graph).items()}
    inputs = batches(case)[0]
    given = {name: each.numpy() for name, each in given_to(graph, inputs).items()}
    logits = Logits.of(graph)
    labels = np.random.default_rng(5).integers(0, logits.classes, logits.label_shape)
    scalars = scalar_bits(learning_rate=0.05)
    with ModelBackend(pipeline, values) as backend:
        before = backend.state()
        result = backend.step(given, labels, scalars)
        check = NumericCheck(
            TorchBackend(graph, values, options=options, precision="mxint8", device="cpu")
        )
        difference = check.after(0, backend, result, before, given, labels, scalars)
        if difference is not None:
            raise WrongError(f"step: {difference}")
        # A gradient that is computed in slices is not kept, and is the first step's momentum.
        gradients = {**backend.parameters(".momentum"), **backend.parameters(".gradient")}
        state = backend.state()
    if case.random or not isinstance(graph.source, TorchSource):
        return 0.0
    loss, expected, buffers = source.gradients(
        inputs,
        lambda each: torch.nn.functional.cross_entropy(
            logits.classes_second(each[0]), torch.tensor(labels)
        ),
    )
    if not abs(loss - result.loss) <= LOSS * max(1.0, abs(loss)):
        raise WrongError(f"step: loss {result.loss:.4f} for {loss:.4f}")
    size = max((float(each.norm()) for each in expected.values()), default=0.0)
    worst = 0.0
    for name, two in expected.items():
        if float(two.norm()) < 1e-3 * size:
            continue  # the gradient of a bias before batch normalisation is rounding alone
        one = torch.tensor(np.array(gradients[name]))
        worst = max(worst, held(f"step: gradient of {name}", one, two, ROUNDED))
    for name, two in buffers.items():
        if name in state:
            held(f"step: statistics {name}", torch.tensor(state[name]), two, 0.05)
    frozen = {n: p for n, p in source.module.named_parameters() if not p.requires_grad}
    for name, two in frozen.items():
        if name in state:
            held(f"step: frozen {name}", torch.tensor(state[name]), two, 0.0)
    return worst


def judge(name: str, case: Case, through: str = "torch") -> dict[str, Any]:
    """Give the verdict about one module."""
    found: dict[str, Any] = {"name": name}
    try:
        torch.manual_seed(0)
        source = Source(case.make(), has_mode=through == "torch")
        try:
            example = tuple(torch.randn(shape) for shape in case.shapes)
            graph = imported(source, example, through)
        except REFUSALS as error:
            return found | {"verdict": "import refused", "reason": str(error)}
        try:
            check = check_import if through == "torch" else check_evaluation
            found["import_error"] = check(case, source, graph)
        except NotImplementedError as error:
            found["reference"] = str(error)  # the graph has an operator that PyTorch's side lacks
        except UserError as error:
            found["reference"] = str(error)
        try:
            check_inference(case, source, graph)
            found["infers"] = True
        except REFUSALS as error:
            found |= {"infers": False, "inference_refused": str(error)}
        try:
            found["step_error"] = check_step(case, source, graph)
            found["verdict"] = "trained right"
        except REFUSALS as error:
            found |= {"verdict": "imported right, step refused", "reason": str(error)}
            if "reference" in found:
                found["verdict"] = "imported unverified, step refused"
    except ExportError as error:
        found |= {"verdict": "not exported right", "reason": str(error)}
    except WrongError as error:
        found |= {"verdict": "WRONG", "reason": str(error)}
    except Exception:  # any error but a refusal is a defect
        found |= {"verdict": "TRACEBACK", "reason": traceback.format_exc(limit=-3)}
    return found


def main() -> int:
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the modules with this in their names")
    parser.add_argument("--through", default="torch", choices=("torch", "onnx", "onnx-old"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begin = time.perf_counter()
    found = []
    for name, case in CASES.items():
        if given.only in name:
            verdict = judge(name, case, given.through)
            found.append(verdict)
            reason = " ".join(str(verdict.get("reason", "")).split())[:160]
            print(f"{verdict['verdict']:34} {name}  {reason}", file=sys.stderr, flush=True)
    counts = Counter(each["verdict"] for each in found)
    result = {
        "through": given.through,
        "modules": len(found),
        "verdicts": dict(counts),
        "wall_s": time.perf_counter() - begin,
        "cases": found,
    }
    print(json.dumps(result, indent=2))
    return 1 if counts["WRONG"] + counts["TRACEBACK"] else 0


if __name__ == "__main__":
    sys.exit(main())

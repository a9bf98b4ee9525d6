"""Which public networks lower for training: torchvision's, timm's, and those of transformers.

Each network is made with random weights at its full size, traced, imported, and lowered to the
program of a training step on one device with a 32x32 core. What is refused has its reasons.

Prints one JSON object: for each network the verdict, the seconds of import and of lowering and the
number of instructions, or the reasons; and each reason with the networks that have it, the most
frequent ones first. ``--family NAME`` takes one of the families, ``--only WORD`` the networks with
the word in their names, ``--check`` only asks for what is refused. With ``--log FILE`` each verdict
is a line of the file as soon as it is known, and networks with a line there are not asked again.

With ``--step``, each network has all its channels and small images or short texts, and two of equal
layers in a row; it is verified against its module in FP64, and its training step in the bit-exact
model is compared with PyTorch in the core's number formats: the loss, and each gradient by its
norm. Rounding differs now and then, and a deep network amplifies that, so PyTorch also runs a step
from weights that differ in their last bits. A gradient is wrong if it is off by more than a tenth
and by more than ten times as much as those bits change it. Where they change one by more than a
hundredth, and one is off by more than that, the network is sensitive, and such a step says little;
where they change one by its own norm, as they do behind statistics of two values, it says nothing.
Then the program of each distinct group of its layers is compared with PyTorch, as ``build`` does,
and the verdict is "right by units"; it is "sensitive" if groups are left that cannot be compared,
and they are named with the reasons. Exits with 1 if a network is wrong.

Needs the packages of the families, torchvision, timm and transformers, which are no requirements of
fpgapipe. An environment of their own keeps them away from its pins::

    python3 -m venv arch
    arch/bin/pip install -e '.[onnx,torch,fast]' torchvision timm transformers
"""

import argparse
import gc
import json
import re
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from architectures import FAMILIES, Example, leave_out_repeats
from numpy.typing import NDArray

from fpgapipe.errors import UserError
from fpgapipe.host.backends.base import StepRunner
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.backends.verification import TOLERANCES, verify
from fpgapipe.host.runtime.program_check import Limits, verify_units
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.units.network_units import refusals_of, units_of
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.frontends.torch.torch_program import from_torch
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


def judge(example: Example, *, lowers: bool) -> dict[str, Any]:
    """Import and lower a network."""
    begin = time.perf_counter()
    found: dict[str, Any] = {"model": example.name, "family": example.family}
    try:
        module, inputs = example.make()
        graph = from_torch((module, *inputs), name=example.name)
        found["import_s"] = time.perf_counter() - begin
        found["parameters"] = graph.totals.parameters
        reasons = [str(each) for each in refusals_of(graph, train=True)]
        if reasons:
            raise UserError("\n".join(reasons))
        if lowers:
            lowering = time.perf_counter()
            program = build_step(graph, CORE, tasks=single_device(1, train=True))
            found["lower_s"] = time.perf_counter() - lowering
            found["instructions"] = len(program.instructions)
        found["verdict"] = "lowers"
    except (UserError, NotImplementedError) as error:
        lines = [line for line in str(error).splitlines() if ": supported are " not in line]
        found |= {"verdict": "refused", "reasons": lines}
    except Exception:  # any error but a refusal is a defect
        found |= {"verdict": "TRACEBACK", "reasons": [traceback.format_exc(limit=-3)]}
    found["wall_s"] = time.perf_counter() - begin
    return found


CORE = CoreSpec(32, 32, scratchpad=ScratchpadSpec(8, 1 << 18), vector=VectorSpec(16))


OFF = 0.1
"""Largest relative difference of a gradient, or of the loss."""
MUCH, FACTOR = 0.01, 10
"""Change by the last bits of the weights that is much, and by how much more rounding may change."""
ALL = 1.0
"""Change by the last bits that leaves nothing of a gradient, so that its error says nothing."""
SENSITIVE = "sensitive"
"""Verdict on a network of which a step says little."""
LAST_BITS = 2.0**-22
LEAST = 1e-3
"""Least norm of a gradient that is compared, relative to the largest norm."""
PARAMETERS_IN_FP64 = 100_000_000


OPTIONS = StepOptions(activations=FP32)
LIMITS = Limits(time_s=600, macs=4_000_000_000, elements=110_000_000)
"""How much of a sensitive network is compared in groups of layers."""


class WrongError(Exception):
    """A network does not compute what its module does."""


def judge_step(example: Example) -> dict[str, Any]:
    """Compare a small training step of a network with PyTorch."""
    begin = time.perf_counter()
    found: dict[str, Any] = {"model": example.name, "family": example.family}
    try:
        torch.manual_seed(0)
        module, inputs = example.make_small()
        lists = example.family == "transformers"
        found["left_out"] = leave_out_repeats(module, lists=lists)
        graph = from_torch((module, *inputs), name=example.name)
        found["parameters"] = graph.totals.parameters
        found["macs"] = graph.totals.macs
        if reasons := [str(each) for each in refusals_of(graph, train=True)]:
            raise UserError("\n".join(reasons))
        small = graph.totals.parameters <= PARAMETERS_IN_FP64
        verified = verify(graph, batches=1, precisions=tuple(TOLERANCES) if small else ("float32",))
        found["import_error"] = verified.to_dict()["max_error"]
        if not verified.verified:
            raise WrongError(str(verified))
        found |= compare_step(graph)
        if found["verdict"] == SENSITIVE:
            found |= compare_units(graph)
    except WrongError as error:
        found |= {"verdict": "WRONG", "reasons": [str(error)]}
    except (UserError, NotImplementedError) as error:
        lines = [line for line in str(error).splitlines() if ": supported are " not in line]
        found |= {"verdict": "refused", "reasons": lines}
    except Exception:  # any error but a refusal is a defect
        found |= {"verdict": "TRACEBACK", "reasons": [traceback.format_exc(limit=-3)]}
    found["wall_s"] = time.perf_counter() - begin
    return found


def compare_step(graph: Graph) -> dict[str, Any]:
    """Compare a training step in the bit-exact model with PyTorch in the core's formats.

    Raises
    ------
    WrongError
        If the loss or a gradient differs by more than rounding explains.
    """
    pipeline = build_pipeline(
        graph, [CORE], [list(graph.layers)], make_schedule("1f1b", 1, 1), options=OPTIONS
    )
    values = initial_parameters(graph, 0)
    batch = random_batch(graph, 0)
    with ModelBackend(pipeline, values) as model:
        loss, gradients = stepped(model, batch)
    expected_loss, expected = stepped(reference(graph, values), batch)
    rng = np.random.default_rng(1)
    nearby = {
        name: each * (1 + LAST_BITS * rng.choice((-1, 1), each.shape)).astype(np.float32)
        for name, each in values.items()
    }
    _, others = stepped(reference(graph, nearby), batch)
    norms = {name: _norm(each) for name, each in expected.items()}
    least = LEAST * max(norms.values())

    def distances(found: Mapping[str, NDArray[np.float32]]) -> dict[str, float]:
        return {
            name: _norm(found[name] - expected[name]) / norm
            for name, norm in norms.items()
            if norm > least
        }

    errors, changes = distances(gradients), distances(others)
    worst = max(errors, key=lambda name: errors[name])
    most = max(changes.values())
    found = {
        "loss": [loss, expected_loss],
        "worst_gradient": {worst: errors[worst]},
        "most_changed": most,
        "verdict": SENSITIVE if min(most, errors[worst]) > MUCH else "right",
    }
    if found["verdict"] == SENSITIVE and most >= ALL and np.isfinite(errors[worst]):
        return found
    if not abs(loss - expected_loss) <= OFF * max(1.0, abs(expected_loss)):
        raise WrongError(f"loss {loss:.4f} for {expected_loss:.4f}")
    wrong = [name for name in errors if not errors[name] <= max(OFF, FACTOR * changes[name])]
    if wrong:
        raise WrongError(
            f"gradient of {wrong[-1]} is off by {errors[wrong[-1]]:.3g}, which the last bits of "
            f"weights change by {changes[wrong[-1]]:.3g}; {len(wrong)} of {len(errors)} are wrong"
        )
    return found


def _norm(values: NDArray[np.float32]) -> float:
    """Euclidean norm; infinite if a value is no number."""
    return float(np.nan_to_num(np.linalg.norm(values.astype(np.float64)), nan=np.inf))


def compare_units(graph: Graph) -> dict[str, Any]:
    """Compare the program of each distinct group of layers with PyTorch.

    Raises
    ------
    WrongError
        If one computes something else.
    """
    begin = time.perf_counter()
    try:
        found = verify_units(
            graph, units_of(graph), dict.fromkeys(graph.layers, CORE), OPTIONS, limits=LIMITS
        )
    except UserError as error:
        raise WrongError(str(error)) from None
    return {
        "verdict": SENSITIVE if found.unverified else "right by units",
        "units": found.compared,
        "unverified": found.unverified,
        "units_s": time.perf_counter() - begin,
    }


def reference(graph: Graph, values: Mapping[str, NDArray[np.float32]]) -> TorchBackend:
    """PyTorch with the core's number formats."""
    return TorchBackend(graph, values, options=OPTIONS, precision="mxint8", device="cpu")


def stepped(
    backend: StepRunner, batch: tuple[Any, Any]
) -> tuple[float, dict[str, NDArray[np.float32]]]:
    """Loss and gradients of a step."""
    result = backend.step(*batch, scalar_bits(learning_rate=1e-3))
    # A gradient that is computed in slices is not kept, and is the first step's momentum.
    return result.loss, {**backend.parameters(".momentum"), **backend.parameters(".gradient")}


def reasons_of(found: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Networks by each reason against them, without the names and numbers that differ."""
    networks: dict[str, list[str]] = defaultdict(list)
    for each in found:
        alike = {re.sub(r"\d[\d,]*", "N", _plain(reason)) for reason in each.get("reasons", ())}
        for reason in sorted(alike):
            networks[reason].append(each["model"])
    return dict(sorted(networks.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _plain(reason: str) -> str:
    """A reason without the names of its network, layer and nodes."""
    reason = re.sub(r"^[\w.-]+: ", "", " ".join(reason.split()))
    reason = re.sub(r" \(nodes .*\)$", "", reason)
    return re.sub(r"(layer|input|node|parameter) '[^']*'", r"\1", reason)


def main() -> int:
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=[*FAMILIES], help="take one of the families")
    parser.add_argument("--only", default="", help="take the networks with this in their names")
    parser.add_argument("--check", action="store_true", help="ask for refusals only")
    parser.add_argument("--step", action="store_true", help="compare a small training step")
    parser.add_argument("--log", type=Path, help="file of verdicts, which is continued")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    log = given.log
    lines = log.read_text().splitlines() if log and log.exists() else []
    known = {(each["family"], each["model"]): each for each in map(json.loads, lines)}
    found = []
    for family in [given.family] if given.family else FAMILIES:
        for example in FAMILIES[family]():
            if given.only not in example.name:
                continue
            if (family, example.name) in known:
                found.append(known[family, example.name])
                continue
            each = judge_step(example) if given.step else judge(example, lowers=not given.check)
            gc.collect()
            found.append(each)
            if log:
                with log.open("a") as file:
                    print(json.dumps(each), file=file)
            reason = " ".join(" ".join(each.get("reasons", ())).split())[:200]
            line = f"{each['verdict']:9} {example.name:30} {each['wall_s']:6.1f} s {reason}"
            print(line, file=sys.stderr, flush=True)
    verdicts = {
        family: Counter(each["verdict"] for each in found if each["family"] == family)
        for family in {each["family"] for each in found}
    }
    print(json.dumps({"verdicts": verdicts, "reasons": reasons_of(found), "each": found}, indent=2))
    return 1 if any(counts["TRACEBACK"] + counts["WRONG"] for counts in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

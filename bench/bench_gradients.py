"""The gradients of each operator, by the bit-exact model, against those of PyTorch's autograd.

A network of one operator trains a step with FP32 activations. The gradient of its logits, computed
in FP64 from the logits that the core gave, is handed back through the same operator in PyTorch, in
FP64. Results and gradients are compared by the norm of the difference, relative to the norm.

What the vector engine computes may differ by 1e-6. A matrix product has operands in MXINT8, whose
rounding causes an error of at most 3.6 % (root mean square; `fpgapipe.host.runtime.check` derives
it) in each product; errors of products that follow one another add up. Prints one JSON object;
exits with 1 if a difference is larger.
"""

import argparse
import json
import sys
from typing import Any

import numpy as np
import torch
from operator_cases import CASES, Case

from fpgapipe.host.backends.torch_reference import forward, gradients_of
from fpgapipe.host.bench.step_bench import relative_error
from fpgapipe.host.runtime.numeric_check import MX_NOISE
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch

CORE = CoreSpec(8, 8, acc_depth=256, scratchpad=ScratchpadSpec(8, 1 << 14), vector=VectorSpec(4, 2))
MOST_OF_VECTORS = 1e-6


def measured(case: Case, seed: int) -> dict[str, Any]:
    """Relative differences of the result and of each gradient."""
    graph = case.network()
    program = build_step(graph, CORE, options=StepOptions(FP32, apart=True))
    parameters = initial_parameters(graph, seed)
    rng = np.random.default_rng(seed)
    for name, value in parameters.items():
        if name.endswith(".value"):  # the arguments; a function is met on both of its sides
            parameters[name] = (2 * rng.standard_normal(value.shape)).astype(np.float32)
    inputs, labels = random_batch(graph, seed)
    memory = program.image(parameters)
    program.set_batch(memory, inputs, labels)
    model = CoreModel(CORE, memory)
    model.scalars[:] = scalar_bits(learning_rate=0.1)
    model.run(program.instructions)
    (output,) = graph.outputs
    shape = graph.layers[output].output.shape
    value = program.values[output]
    logits = value.layout.from_memory(program.read(memory, value.tensor.name), shape)
    gradients = program.parameters(memory, ".gradient")

    weights, given = (
        {
            name: torch.tensor(value, dtype=torch.float64 if value.dtype == np.float32 else None)
            for name, value in values.items()
        }
        for values in (parameters, inputs)
    )
    expected = forward(graph, weights, given, training=True)[output].numpy()
    found = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(found, torch.as_tensor(labels))
    (coming,) = torch.autograd.grad(loss, [found])
    reference = gradients_of(graph, weights, given, {}, lambda result: (result * coming).sum())
    errors = {
        name: relative_error(gradients[name], value.numpy()) for name, value in reference.items()
    }
    limit = case.products * MX_NOISE if case.products else MOST_OF_VECTORS
    worst = max(relative_error(logits, expected), *errors.values())
    return {
        "result": relative_error(logits, expected), "gradients": errors, "products": case.products,
        "limit": limit, "worst": worst, "of_limit": worst / limit,
    }  # fmt: skip


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="take the operators with this in their names")
    parser.add_argument("--seeds", type=int, default=3, help="number of random draws of each")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for case in CASES:
        if given.only in case.name:
            each = max(
                (measured(case, seed) for seed in range(given.seeds)),
                key=lambda one: one["of_limit"],
            )
            found[case.name] = each
            print(f"{case.name:40} {each['worst']:.2e}, {each['of_limit']:.2f} of the limit",
                  file=sys.stderr)  # fmt: skip
    over = [name for name, each in found.items() if not each["of_limit"] <= 1]
    print(json.dumps({"operators": found, "over": over}, indent=1))
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())

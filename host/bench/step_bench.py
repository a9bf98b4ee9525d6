"""Benchmark of a training step on the simulated core, checked against model and PyTorch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.host.backends.torch_step import Reference, torch_step
from fpgapipe.host.bench.step_check import ProductError, product_errors
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.lowering.memory.memory_map import LOSS
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.network_units import drop_factors_of
from fpgapipe.lowering.units.step_options import Scalar, StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.sim_tb.native.core_device import build_device, counters, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.program.step_program import StepProgram
    from fpgapipe.network.graph import Graph

    Values = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class StepBench:
    """Results of `bench_step`; ``to_dict`` gives them for JSON.

    Attributes
    ----------
    program : StepProgram
    cycles, predicted_cycles : int
        Cycles from the start command to the last word written, simulated and by the cycle model.
    differing_bytes : int
        Number of bytes of memory that differ between the hardware and the bit-exact model.
    counters : mapping
        Counters of the core.
    products : list of ProductError
        Errors of all matrix products.
    reference : Reference
        Result of the step in PyTorch.
    loss : float
        Loss that the core has computed.
    logits_error : float
        Relative error of the logits against PyTorch's (`relative_error`).
    gradient_errors : mapping of str to float
        Relative error of each parameter's gradient against PyTorch's (`relative_error`).
    generate_s, build_s, wall_s : float
        Seconds for generating the Verilog, for compiling it, and for the simulation.
    seconds : mapping of str to float
        Seconds for lowering, prediction and the bit-exact model.
    """

    program: StepProgram
    cycles: int
    predicted_cycles: int
    differing_bytes: int
    counters: Mapping[str, int]
    products: list[ProductError]
    reference: Reference
    loss: float
    logits_error: float
    gradient_errors: Mapping[str, float]
    generate_s: float
    build_s: float
    wall_s: float
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def gemm_busy_share(self) -> float:
        """Share of cycles in which a vector entered the array of the first GEMM engine."""
        return self.counters["GEMM0_VECTORS"] / self.cycles

    def to_dict(self) -> dict[str, Any]:
        """Values of the results, by name."""
        core, program = self.program.core, self.program
        macs = 0
        for layer in program.graph.layers:
            for gemms in program.graph.passes(layer).values():
                macs += sum(gemm.macs for gemm in gemms)
        return {
            "network": program.graph.name,
            "batch": program.graph.batch,
            "rows": core.rows,
            "cols": core.cols,
            "macs": macs,
            "cycles": self.cycles,
            "predicted_cycles": self.predicted_cycles,
            "error": (self.predicted_cycles - self.cycles) / self.cycles,
            "gemm_busy": self.counters["GEMM0_BUSY"] / self.cycles,
            "gemm_streaming": self.gemm_busy_share,
            "utilisation": macs / (self.cycles * core.array.cells),
            "matches_model": self.differing_bytes == 0,
            "differing_bytes": self.differing_bytes,
            "instructions": len(program.instructions),
            "kernels": len(program.kernels),
            "loss": self.loss,
            "torch_loss": self.reference.loss,
            "logits_error": self.logits_error,
            "product_error_of_bound": max(each.of_bound for each in self.products),
            "product_error_of_expected": max(
                each.relative / each.expected for each in self.products if each.expected
            ),
            "gradient_errors": dict(self.gradient_errors),
            "counters": dict(self.counters),
            "generate_s": self.generate_s,
            "build_s": self.build_s,
            "wall_s": self.wall_s,
            **self.seconds,
        }


def bench_step(
    graph: Graph,
    core: CoreSpec,
    *,
    seed: int = 0,
    options: StepOptions | None = None,
    memory: MemorySpec | None = None,
    batch: tuple[Values, NDArray[np.int64]] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> StepBench:
    """Run one training step on the simulated core.

    Parameters
    ----------
    graph, core, options, memory
        Arguments of `fpgapipe.lowering.program.step.build_step`.
    seed : int
        Seed of the parameters, and of the data if none are given.
    batch : (mapping, array), optional
        Inputs and class numbers.
    progress : callable, optional
        Function that is called now and then with the cycles so far and those predicted.
    """
    from fpgapipe.sim_tb.native.native import NativeDevice

    memory = memory or MemorySpec()
    begin = time.perf_counter()
    # Intermediate results are read after the step, so none may share a place with another.
    program = build_step(graph, core, memory, replace(options or StepOptions(), apart=True))
    lowered = time.perf_counter()
    predicted = predict(program.instructions, core, memory)
    timed = time.perf_counter()
    library, generate_s, build_s = build_device(core)
    parameters = initial_parameters(graph, seed)
    inputs, labels = batch or random_batch(graph, seed)
    image = program.image(parameters)
    program.set_batch(image, inputs, labels)
    registers = RegisterMap(core)
    scalars = scalar_bits(seed=seed)
    started = time.perf_counter()
    with NativeDevice(
        library,
        memory_bytes=program.memory_bytes,
        bytes_per_cycle=memory.bytes_per_cycle,  # type: ignore[arg-type]
        latency_cycles=memory.latency_cycles,
    ) as device:
        device.reset()
        device.memory[:] = image
        for number, bits in enumerate(scalars):
            device.write_register(registers.offset(f"SCALAR{number}"), bits)
        cycles = run_program(
            device,
            registers,
            program.entry,
            program.memory_bytes,
            progress=progress
            and (lambda now: progress(now.cycle, max(now.cycle, predicted.cycles))),
        )
        wall_s = time.perf_counter() - started
        counted = counters(device, registers)
        started = time.perf_counter()
        model = CoreModel(core, image)
        model.scalars[:] = scalars
        model.run(program.instructions)
        model_s = time.perf_counter() - started
        differing = int(np.count_nonzero(device.memory != image))
    key = scalars[Scalar.RANDOM_SEED : Scalar.RANDOM_STEP + 1]
    reference = torch_step(graph, parameters, inputs, labels, drop_factors_of(graph, key))
    gradients = program.parameters(image, ".gradient")
    output = program.values[graph.outputs[0]]
    found = program.read(image, output.tensor.name)
    logits = output.layout.from_memory(found, reference.logits.shape)
    loss = float(program.read(image, LOSS)[0])
    program.set_parameters(image, parameters)
    products = product_errors(program, image)
    return StepBench(
        program,
        cycles,
        predicted.cycles,
        differing,
        counted,
        products,
        reference,
        loss,
        relative_error(logits, reference.logits),
        {
            name: relative_error(gradients[name], value)
            for name, value in reference.gradients.items()
        },
        generate_s,
        build_s,
        wall_s,
        {"lower_s": lowered - begin, "predict_s": timed - lowered, "model_s": model_s},
    )


def relative_error(values: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    """Norm of the difference over the norm of the exact values, or alone if that is zero."""
    size = float(np.linalg.norm(exact.astype(np.float64)))
    error = float(np.linalg.norm(values.astype(np.float64) - exact))
    return error / size if size else error

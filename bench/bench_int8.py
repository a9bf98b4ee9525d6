"""INT8 inference against TOSA's reference model and ONNX's own cases.

A case is a random convolution with a bias and a RESCALE, as TOSA defines them: any integers of
eight bits, zero points, multipliers of 31 bits. It becomes a network, the network a program, and
the program runs on the bit-exact model of a core. Every integer has to be that of Arm's reference
model, which ``pip install --no-deps tosa-tools`` installs; without it, that of TOSA's formula.

Prints a JSON object.
"""

import argparse
import json
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.int8 import Rounding, Scale, rescaled
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.integer_units import constants_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import operators as ops
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.operators.tensors import DType, Tensor

ROOT = Path(__file__).parent.parent
CORE = CoreSpec(16, 16, scratchpad=ScratchpadSpec(4, 1 << 17), vector=VectorSpec())
HAS_TOSA = find_spec("tosa_reference_model") is not None


def drawn(rng):
    """A random case: shapes, integers, zero points and scales."""
    kernel = tuple(int(each) for each in rng.integers(1, 4, 2))
    is_linear = rng.integers(5) == 0
    channels = int(rng.integers(1, 200 if is_linear else 49))
    size = (1, 1) if is_linear else tuple(int(each) for each in rng.integers(3, 10, 2))
    if is_linear:
        kernel = (1, 1)
    case = {
        "kernel": kernel,
        "stride": tuple(int(each) for each in rng.integers(1, 3, 2)),
        "dilation": (1, 1),
        "padding": tuple(tuple(int(e) for e in rng.integers(0, k, 2)) for k in kernel),
        "zeros": tuple(int(each) for each in rng.integers(-128, 128, 3)),
    }
    if rng.integers(3):
        case["zeros"] = (case["zeros"][0], 0, case["zeros"][2])  # weights mostly have none
    # TOSA demands that the windows reach the end of the padded images.
    case["stride"] = tuple(
        stride if (length + sum(pads) - taps) % stride == 0 else 1
        for stride, length, pads, taps in zip(
            case["stride"], size, case["padding"], kernel, strict=True
        )
    )
    outputs = int(rng.integers(1, 33))
    batch = int(rng.integers(1, 4))
    case["x"] = rng.integers(-128, 128, (batch, channels, *size)).astype(np.int8)
    case["w"] = rng.integers(-128, 128, (outputs, channels, *kernel)).astype(np.int8)
    case["bias"] = rng.integers(-20000, 20000, outputs).astype(np.int32)
    terms = channels * kernel[0] * kernel[1]
    spread = 74.0 * 74 * np.sqrt(terms)
    count = outputs if rng.integers(2) else 1
    factors = 40 / spread * 2.0 ** rng.uniform(-2, 2, count)
    mantissas, exponents = np.frexp(factors)
    case["multipliers"] = [min(round(float(each) * 2**31), 2**31 - 1) for each in mantissas]
    case["shifts"] = [31 - int(each) for each in exponents]
    return case


def on_core(case):
    """The integers that a program on the model of a core computes, and its kind of constants."""
    x_zero, w_zero, y_zero = case["zeros"]
    x, weights = case["x"], case["w"].astype(np.int64) - w_zero
    outputs = len(weights)
    b = GraphBuilder("case", len(x))
    layer = b.add("centred", ops.Centre(x_zero), b.input("x", Tensor(x.shape, DType.INT8)))
    conv = ops.Conv(
        outputs, case["kernel"], case["stride"], case["padding"], case["dilation"], bias=False
    )
    layer = b.add("product", conv, layer, frozen=("weight",))
    magnitudes = np.abs(weights).reshape(outputs, -1)
    operator = ops.Rescale(
        (-128 - x_zero, 127 - x_zero),
        (int(weights.min()), int(weights.max())),
        int(magnitudes.sum(1).max()),
        magnitudes.shape[1],
        (-128 - y_zero, 127 - y_zero),
        tuple(int(each) for each in case["bias"]),
        tuple(case["multipliers"]),
        tuple(case["shifts"]),
        "up",
    )
    layer = b.add("rescaled", operator, layer)
    b.add("y", ops.Affine(1.0, float(y_zero)), layer)
    b.set_value("product.weight", np.float32(weights))
    graph = b.build()
    program = build_step(graph, CORE, options=StepOptions(train=False))
    memory = program.image(graph.values)
    program.set_batch(memory, {"x": x})
    CoreModel(CORE, memory).run(program.instructions)
    return program.results(memory)["y"], type(constants_of(operator)).__name__


def sums(case):
    """Exact sums of products, with the bias."""
    x_zero, w_zero, _ = case["zeros"]
    (top, bottom), (left, right) = case["padding"]
    sides = ((0, 0), (0, 0), (top, bottom), (left, right))
    x = np.pad(case["x"].astype(np.int64) - x_zero, sides)
    weights = case["w"].astype(np.int64) - w_zero
    down, across = case["stride"]
    height, width = case["kernel"]
    rows = (x.shape[2] - height) // down + 1
    columns = (x.shape[3] - width) // across + 1
    found = np.zeros((len(x), len(weights), rows, columns), np.int64)
    for i in range(height):
        for j in range(width):
            part = x[:, :, i::down, j::across][:, :, :rows, :columns]
            found += np.einsum("nchw,oc->nohw", part, weights[:, :, i, j])
    return found + case["bias"][:, None, None]


def by_formula(case):
    """The integers by TOSA's pseudocode of ``apply_scale_32``."""
    totals = sums(case)
    found = np.empty_like(totals)
    for channel in range(totals.shape[1]):
        index = channel % len(case["multipliers"])
        m, s = case["multipliers"][index], case["shifts"][index]
        for place, total in np.ndenumerate(totals[:, channel]):
            scaled = (int(total) * m + (1 << (s - 1))) >> s
            found[:, channel][place] = min(max(scaled + case["zeros"][2], -128), 127)
    return found


class Tosa:
    """Arm's reference model of TOSA."""

    def __init__(self):
        import tosa_reference_model
        import tosa_serializer

        self._run = tosa_reference_model.run
        self._ts = tosa_serializer

    def _rescale(self, serializer, source, result, case, double):
        ts, count = self._ts, len(case["multipliers"])
        kinds = ts.DType
        numbers = np.array(case["multipliers"], np.int32)
        serializer.addConst([count], kinds.INT32, numbers, "multiplier")
        serializer.addConst([count], kinds.INT8, np.array(case["shifts"], np.int8), "shift")
        serializer.addConst([1], kinds.INT32, np.zeros(1, np.int32), "none")
        serializer.addConst([1], kinds.INT8, np.array([case["zeros"][2]], np.int8), "y_zero")
        modes = ts.RoundingMode
        mode = modes.DOUBLE_ROUND if double else modes.SINGLE_ROUND
        settings = ts.TosaSerializerAttribute()
        settings.RescaleAttribute(True, mode, count > 1, False, False)
        inputs = [source, "multiplier", "shift", "none", "y_zero"]
        serializer.addOperator(ts.Op.RESCALE, inputs, [result], settings)

    def _outputs(self, serializer, inputs):
        outputs, status = self._run(serializer.serialize(), inputs)
        assert status.name == "TOSA_VALID", status
        return outputs[0]

    def convolution(self, case):
        """The integers of a case; TOSA's images have their channels last."""
        ts = self._ts
        kinds = ts.DType
        x = np.ascontiguousarray(case["x"].transpose(0, 2, 3, 1))
        w = np.ascontiguousarray(case["w"].transpose(0, 2, 3, 1))
        shape = list(sums(case).transpose(0, 2, 3, 1).shape)
        serializer = ts.TosaSerializer(tempfile.gettempdir())
        serializer.addInputTensor(ts.TosaSerializerTensor("x", list(x.shape), kinds.INT8))
        serializer.addConst(list(w.shape), kinds.INT8, w, "w")
        serializer.addConst([len(w)], kinds.INT32, case["bias"], "bias")
        for name, zero in zip(("x_zero", "w_zero"), case["zeros"], strict=False):
            serializer.addConst([1], kinds.INT8, np.array([zero], np.int8), name)
        total = serializer.addIntermediate(shape, kinds.INT32)
        pads = [side for pair in case["padding"] for side in pair]
        settings = ts.TosaSerializerAttribute()
        settings.Conv2dAttribute(
            pads, list(case["stride"]), list(case["dilation"]), False, kinds.INT32
        )
        operands = ["x", "w", "bias", "x_zero", "w_zero"]
        serializer.addOperator(ts.Op.CONV2D, operands, [total.name], settings)
        result = serializer.addOutput(shape, kinds.INT8)
        self._rescale(serializer, total.name, result.name, case, double=False)
        return self._outputs(serializer, [x]).transpose(0, 3, 1, 2)

    def rescale(self, totals, case, double):
        """RESCALE of sums of 32 bits, channels last."""
        ts = self._ts
        serializer = ts.TosaSerializer(tempfile.gettempdir())
        shape = list(totals.shape)
        serializer.addInputTensor(ts.TosaSerializerTensor("x", shape, ts.DType.INT32))
        result = serializer.addOutput(shape, ts.DType.INT8)
        self._rescale(serializer, "x", result.name, case, double)
        return self._outputs(serializer, [totals])


def rescaling(rng, tosa, count):
    """The definition of rescaling against TOSA's, with sums of 32 bits and both roundings."""
    equal = elements = 0
    for number in range(count):
        shift = int(rng.integers(2, 63))
        case = {
            "multipliers": [int(rng.integers(1 << 30, 1 << 31))],
            "shifts": [shift],
            "zeros": (0, 0, int(rng.integers(-128, 128))),
        }
        wide = min(2.0**31 - 1, 200 * 2.0 ** (shift - 30))
        totals = rng.uniform(-wide, wide, (1, 2, 2, 50)).astype(np.int32)
        double = bool(number % 2)
        zero = case["zeros"][2]
        scale = Scale(case["multipliers"][0], shift)
        rounding = Rounding.DOUBLE if double else Rounding.UP
        found = rescaled(totals.astype(np.int64), scale, rounding, -128 - zero, 127 - zero) + zero
        equal += int((found == tosa.rescale(totals, case, double)).sum())
        elements += totals.size
    return {"integers": elements, "equal": equal}


def onnx_cases():
    """ONNX's own cases of quantised operators, on the same core."""
    sys.path.insert(0, str(ROOT / "tests" / "cases"))
    from onnx_cases import Machine, cases_of, run_network

    found = {}
    machine = Machine(CORE)
    for operator in ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"):
        results = []
        for case in cases_of(operator).values():
            with tempfile.TemporaryDirectory() as folder:
                given = run_network(
                    case, machine, Path(folder) / "case.onnx", tuple(range(1, 9)), exact=True
                )
            results.append(bool((given.found[0] == case.outputs[0]).all()))
        found[operator] = {"cases": len(results), "equal": sum(results)}
    return found


def accuracy(seed, epochs=8):
    """Right labels of digits-cnn, trained in FP32, in FP32, in MXINT8 and in INT8."""
    import torch

    from fpgapipe.host.backends.calibration import calibrated
    from fpgapipe.host.backends.torch_reference import forward
    from fpgapipe.host.data.data import load_data
    from fpgapipe.host.runtime.evaluation import Inference
    from fpgapipe.network.initial_values import initial_parameters
    from fpgapipe.network.zoo import built_in

    def load(count):
        return built_in("digits-cnn", count)

    graph = load(32)
    data = load_data("digits", graph)
    first = initial_parameters(graph, seed)
    weights = {name: torch.from_numpy(value).requires_grad_() for name, value in first.items()}
    optimiser = torch.optim.SGD(weights.values(), lr=0.02, momentum=0.9)
    (output,) = graph.outputs
    for epoch in range(epochs):
        for batch in data.train.batches(32, seed=seed, epoch=epoch):
            images = {"input": torch.from_numpy(batch.images)}
            logits = forward(graph, weights, images, training=True)[output]
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    trained = {name: value.detach() for name, value in weights.items()}
    samples = data.validation
    images = {"input": torch.from_numpy(samples.images)}
    logits = forward(load(len(samples.labels)), trained, images)[output]
    right = {"fp32": int((logits.argmax(1).numpy() == samples.labels).sum())}
    values = {name: value.numpy() for name, value in trained.items()}
    right["mxint8"] = Inference(load(60), CORE, samples)(values)[0]
    integers = calibrated(load, values, data.train)(60)
    right["int8"] = Inference(integers, CORE, samples)(integers.values)[0]
    return {"seed": seed, "samples": len(samples.labels), "right": right}


def main():
    """Run the cases and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="Random cases [default: 1000].")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--accuracy", type=int, default=0, help="Seeds of trained networks [default: none]."
    )
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    tosa = Tosa() if HAS_TOSA else None
    begin = time.perf_counter()
    integers = equal = wrong = refused = 0
    kinds, reasons = {}, {}
    most = 0
    for number in range(options.cases):
        case = drawn(rng)
        if number % 100 == 0:
            print(f"case {number}", file=sys.stderr)
        expected = tosa.convolution(case) if tosa else by_formula(case)
        try:
            found, kind = on_core(case)
        except (NotImplementedError, UserError) as error:
            refused += 1
            reasons[str(error)] = reasons.get(str(error), 0) + 1
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        most = max(most, case["w"][0].size)
        same = int((found == expected).sum())
        integers, equal = integers + found.size, equal + same
        wrong += same != found.size
    print(
        json.dumps(
            {
                "reference": "tosa_reference_model" if tosa else "formula of apply_scale_32",
                "cases": options.cases,
                "cases_wrong": wrong,
                "cases_refused": refused,
                "reasons": reasons,
                "integers": integers,
                "integers_equal": equal,
                "longest_sum": most,
                "constants": kinds,
                "rescale_of_32_bits": rescaling(rng, tosa, options.cases) if tosa else None,
                "onnx": onnx_cases(),
                "digits_cnn": [accuracy(seed) for seed in range(options.accuracy)],
                "seconds": round(time.perf_counter() - begin, 1),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

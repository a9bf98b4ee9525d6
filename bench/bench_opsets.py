"""Compares ONNX models of every opset with onnxruntime.

60 networks (`opset_networks.py`), each at every opset from 9 to 26 at which it can be had: exported
by PyTorch's older exporter up to opset 17, by its newer one for 18, and converted from there by
onnx's version converter. Six of the 60 are others of them that onnxruntime has quantised, as pairs
of QuantizeLinear and DequantizeLinear. Each model is imported, computed in the types of the graph,
and compared.

Prints one JSON object: counts of the verdicts, the share that is refused, and everything that is
not equal. Exits with 1 if a result is wrong or more than 5 % are refused. ``--only WORD`` runs the
networks with the word in their names.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from opset_networks import NETWORKS, QUANTISED

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_reference import forward, initial_weights
from fpgapipe.network.frontends.onnx.onnx_model import read_onnx
from fpgapipe.network.frontends.onnx.onnx_reference import evaluator, runtime

OPSETS = range(9, 27)
OLDER = 17
"""Newest opset for which the older exporter is asked."""
LIMIT = 1e-4
"""Largest difference, relative to the norm of what onnxruntime computes."""
MOST_REFUSED = 0.05


class Once(CalibrationDataReader):
    """Gives one batch of inputs."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.left = [inputs]

    def get_next(self) -> dict[str, Any] | None:
        """The next batch; None after the last one."""
        return self.left.pop() if self.left else None


def exported(name: str, opset: int, folder: Path) -> Any:
    """A network's model as an exporter of PyTorch writes it."""
    torch.manual_seed(0)
    make, shapes = NETWORKS[name]
    module, inputs = make(), tuple(torch.randn(shape) for shape in shapes)
    module(*inputs)  # lazy layers, and running statistics
    module.eval()
    path = folder / "exported.onnx"
    names = [f"x{place}" for place in range(len(shapes))]
    more: dict[str, Any] = {"input_names": names, "opset_version": opset, "verbose": False}
    torch.onnx.export(module, inputs, path, dynamo=opset > OLDER, external_data=False, **more)
    return onnx.load(path)


def quantised(model: Any, inputs: dict[str, Any], folder: Path) -> Any:
    """A model quantised by onnxruntime."""
    source, path = folder / "source.onnx", folder / "quantised.onnx"
    onnx.save(model, source)
    quantize_static(source, path, Once(inputs), quant_format=QuantFormat.QDQ)
    return onnx.load(path)


def models_of(name: str, folder: Path) -> Iterator[tuple[str, int, Any]]:
    """A network's models; an exception in the place of one that cannot be had."""
    sources: dict[str, dict[int, Any]] = {"": {}}
    if name in QUANTISED:
        sources["quantised "] = {}
    for opset in OPSETS:
        for kind, made in sources.items():
            try:
                if opset <= OLDER + 1 and kind:
                    made[opset] = quantised(sources[""][opset], inputs_of(name), folder)
                elif opset <= OLDER + 1:
                    made[opset] = exported(name, opset, folder)
                else:
                    newest = max((each for each in made if each < opset), default=opset)
                    made[opset] = version_converter.convert_version(made[newest], opset)
            except Exception as error:  # whatever the exporter, the quantiser or converter raises
                yield f"{kind}{name}", opset, error
                continue
            found = next(e.version for e in made[opset].opset_import if e.domain in ("", "ai.onnx"))
            if found == opset:
                yield f"{kind}{name}", opset, made[opset]
            else:
                yield f"{kind}{name}", opset, ValueError(f"it came at opset {found}")


def inputs_of(name: str) -> dict[str, Any]:
    """Random inputs of a network."""
    generator = np.random.default_rng(1)
    shapes = NETWORKS[name][1]
    return {
        f"x{place}": generator.standard_normal(shape).astype(np.float32)
        for place, shape in enumerate(shapes)
    }


def judged(model: Any, inputs: dict[str, Any], path: Path) -> tuple[str, Any]:
    """The verdict on a model, with the error or the reason."""
    onnx.save(model, path)
    try:
        graph = read_onnx(path)
        given = {each: torch.from_numpy(value) for each, value in inputs.items()}
        with torch.no_grad():
            values = forward(graph, initial_weights(graph), given)
    except UserError as error:
        return "refused", str(error).removeprefix(str(path))[:300]
    try:
        expected, verdict = runtime(path)(inputs), "equal"
    except UserError as reason:
        try:
            expected = evaluator(path, double=False)(inputs)
        except UserError:
            return "not run", str(reason)[-200:]
        verdict = "equal to the reference evaluator, onnxruntime does not run it"
    worst = 0.0
    for own, value in zip(graph.outputs, expected, strict=True):
        found = values[own].numpy()
        if found.shape != value.shape:
            return "wrong", f"shape {found.shape} for {value.shape}"
        worst = max(worst, float(np.linalg.norm(found - value) / (np.linalg.norm(value) or 1.0)))
    return (verdict if worst <= LIMIT else "wrong"), worst


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare ONNX models of all opsets.")
    parser.add_argument("--only", default="", help="part of the names of networks")
    chosen = parser.parse_args().only
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    verdicts: Counter[str] = Counter()
    others: dict[str, dict[str, list[int]]] = {}
    opsets: Counter[int] = Counter()
    worst: dict[str, float] = {}
    networks = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in (each for each in NETWORKS if chosen in each):
            networks += 1 + (name in QUANTISED)
            inputs = inputs_of(name)
            with contextlib.redirect_stdout(io.StringIO()):
                models = list(models_of(name, Path(folder)))
            for case, opset, model in models:
                if isinstance(model, Exception):
                    verdict, what = "not to be had", " ".join(str(model).split())[:200]
                else:
                    verdict, what = judged(model, inputs, Path(folder) / "model.onnx")
                    opsets[opset] += 1
                verdicts[verdict] += 1
                if verdict.startswith("equal"):
                    worst[case] = max(worst.get(case, 0.0), what)
                if verdict != "equal":
                    where = others.setdefault(f"{case}: {verdict}", {})
                    where.setdefault(str(what), []).append(opset)
            print(f"{name}: {dict(verdicts)}", file=sys.stderr)
    had = sum(opsets.values())
    refused = verdicts["refused"] / had if had else 0.0
    result = {
        "networks": networks,
        "models": had,
        "by_opset": dict(sorted(opsets.items())),
        "verdicts": dict(verdicts),
        "refused_share": refused,
        "largest_error": max(worst.values(), default=None),
        "largest_error_of_quantised": max(
            (error for case, error in worst.items() if case.startswith("quantised")), default=None
        ),
        "others": others,
    }
    print(json.dumps(result, indent=2))
    return int(verdicts["wrong"] > 0 or refused > MOST_REFUSED)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

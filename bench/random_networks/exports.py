"""Random networks through PyTorch's exporters to ONNX, and back."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_reference import forward, initial_weights
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network

from .checks import Subject, Wrong, check_model, held_verification

LIMIT = 1e-3
"""Largest difference by norm between a module and what is imported from its export, in FP32."""


def check_onnx(subject: Subject) -> None:
    """Export by both exporters, import the models, and compare them with the module.

    The bit-exact model trains one of them, if it trains the module itself.
    """
    reasons = []
    for dynamo in (False, True):
        try:
            graph = exported(subject, dynamo=dynamo)
            compare(subject, graph)
        except (UserError, NotImplementedError) as error:
            reasons.append(f"{words(dynamo)}: {error}")
            continue
        except Wrong as error:
            raise Wrong(f"{words(dynamo)}: {error}") from None
        if dynamo == bool(subject.seed % 2):
            try:
                check_model(replace(subject, graph=graph))
            except (UserError, NotImplementedError) as error:
                reasons.append(f"{words(dynamo)}, step: {error}")
            except Wrong as error:
                raise Wrong(f"{words(dynamo)}, step: {error}") from None
    if reasons:
        raise UserError(reasons[0])


def words(dynamo: bool) -> str:
    """Name of an exporter."""
    return "new exporter" if dynamo else "old exporter"


def exported(subject: Subject, *, dynamo: bool) -> Graph:
    """The import of a module's export."""
    module = copy.deepcopy(subject.network.module).eval()
    example = subject.network.example
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                torch.onnx.export(module, (example,), str(path), dynamo=dynamo, verbose=False)
        except Exception as error:  # any error of the exporter
            raise UserError(f"PyTorch does not export it: {type(error).__name__}") from None
        finally:
            logging.disable(logging.NOTSET)
        graph = load_network(str(path))
        held_verification(graph)
        return graph


def compare(subject: Subject, graph: Graph) -> None:
    """Compare a graph's results with those of the module in evaluation."""
    module = copy.deepcopy(subject.network.module).eval()
    example = subject.network.example
    with torch.no_grad():
        results = module(example)
        expected = results if isinstance(results, tuple) else (results,)
        given = dict.fromkeys(graph.inputs, example)
        values = forward(graph, initial_weights(graph), given, training=False)
    if len(graph.outputs) != len(expected):
        raise Wrong(f"{len(graph.outputs)} outputs for {len(expected)}")
    for name, two in zip(graph.outputs, expected, strict=True):
        one = values[name]
        if one.shape != two.shape:
            raise Wrong(f"output {name} has shape {tuple(one.shape)} for {tuple(two.shape)}")
        error = float((one - two).norm() / two.norm().clamp(min=1e-6))
        if not error <= LIMIT:
            raise Wrong(f"output {name} is off by {error:.3g}")

"""Operators of ONNX in all variants: equal to onnxruntime, or refused.

ONNX's reference evaluator computes some of them otherwise, so it is asked where onnxruntime does
not run a model.
"""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
torch = pytest.importorskip("torch", reason="needs the torch extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnxruntime extra")
from onnx_models import random  # noqa: E402
from onnx_variants import VARIANTS  # noqa: E402

from fpgapipe.errors import UserError  # noqa: E402
from fpgapipe.host.backends.torch_reference import forward, initial_weights  # noqa: E402
from fpgapipe.network.frontends.onnx.onnx_model import read_onnx  # noqa: E402
from fpgapipe.network.frontends.onnx.onnx_reference import evaluator, runtime  # noqa: E402


def imported(path, x):
    """The result of the imported network."""
    graph = read_onnx(path)
    values = forward(graph, initial_weights(graph), {"x": torch.from_numpy(x)})
    return values[graph.outputs[0]].numpy()


def expected(path, x):
    """The result in onnxruntime or, where it does not run the model, the reference evaluator."""
    try:
        return runtime(path)({"x": x})[0]
    except UserError:
        return evaluator(path, double=False)({"x": x})[0]


@pytest.mark.parametrize("kind", VARIANTS)
def test_variants_are_right_or_refused(kind, tmp_path):
    variants, least = VARIANTS[kind]
    path, accepted, wrong = tmp_path / "v.onnx", 0, []
    for variant in variants():
        onnx.save(variant.model(), path)
        x = random(*variant.shape, seed=1)
        try:
            found = imported(path, x)
        except UserError:
            continue
        accepted += 1
        want = expected(path, x)
        if found.shape != want.shape or not np.allclose(found, want, rtol=1e-4, atol=1e-5):
            wrong.append(str(variant))
    assert not wrong, "\n".join(wrong)
    assert accepted >= least

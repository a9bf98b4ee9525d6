"""ONNX models of modules that PyTorch's exporter does not take as they are."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")
onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxscript", reason="needs the export extra")
from onnx.reference import ReferenceEvaluator  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.network.frontends.torch.torch_export import exported_onnx  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402
from fpgapipe.network.graph import NetworkError  # noqa: E402
from fpgapipe.network.load import load_network  # noqa: E402


class OneHead(nn.Module):
    """Attention without an axis of heads, causal or with a mask of three axes."""

    def __init__(self, *, causal):
        super().__init__()
        self.qkv, self.causal = nn.Linear(8, 24), causal
        self.register_buffer("seen", torch.eye(5, dtype=torch.bool)[None] | (torch.arange(5) < 2))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.causal:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.scaled_dot_product_attention(q, k, v, self.seen, scale=0.5)


def written(module, inputs):
    graph = from_torch((module, inputs), name="net")
    tensors = {name: value.numpy() for name, value in module.state_dict().items()}
    return exported_onnx(graph, graph.source, tensors)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_without_heads_is_written(causal, tmp_path):
    torch.manual_seed(0)
    module, x = OneHead(causal=causal), torch.randn(3, 5, 8)
    path = tmp_path / "net.onnx"
    path.write_bytes(written(module, x[:2]))
    (found,) = ReferenceEvaluator(str(path)).run(
        None, {onnx.load(path).graph.input[0].name: x.numpy()}
    )
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x).numpy(), atol=1e-6)
    graph = load_network(str(path), 3)  # the exporter asks for rows that a mask hides wholly
    found = verify(graph)
    assert found.verified, str(found)


def test_what_it_cannot_write_is_said_by_the_first_cause(monkeypatch):
    class Twisted(nn.Module):
        def forward(self, x):
            return x + 1

    def failing(*args, **kwargs):
        try:
            raise AssertionError("only 7D tensors are supported")
        except AssertionError as error:
            raise RuntimeError("Failed to export. [96mThis is step 3/3") from error

    graph = from_torch((Twisted(), torch.zeros(2, 3)), name="net")
    monkeypatch.setattr(torch.onnx, "export", failing)
    message = "^net: PyTorch cannot write it as ONNX: only 7D tensors are supported$"
    with pytest.raises(NetworkError, match=message):
        exported_onnx(graph, graph.source, {})

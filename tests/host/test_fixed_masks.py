"""Attention with a fixed mask that hides by -infinity, or by the lowest number of FP32."""

import math
import warnings

import numpy as np
import pytest

import fpgapipe
from fpgapipe.host.runtime.checkpoint import CheckpointFolder
from fpgapipe.host.runtime.divergence import fixed_numbers

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402

from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402

POSITIONS, WIDTH = 8, 16
LOWEST = float(np.finfo(np.float32).min)


class Window(nn.Module):
    """Each position sees those that are at most two away, by a mask that is no causal one."""

    def __init__(self, low):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        places = torch.arange(POSITIONS)
        far = (places[:, None] - places[None]).abs() > 2
        self.register_buffer("mask", torch.zeros(POSITIONS, POSITIONS).masked_fill(far, low))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 4 + self.mask
        return self.head((scores.softmax(-1) @ self.v(x)).mean(1))


@pytest.mark.parametrize("low", [-math.inf, LOWEST])
@pytest.mark.parametrize("kind", ["module", "onnx"])
def test_it_is_verified_trained_and_resumed(low, kind, tmp_path):
    torch.manual_seed(0)
    source = Window(low), torch.randn(2, POSITIONS, WIDTH)
    if kind == "onnx":
        pytest.importorskip("onnx", reason="needs the onnx extra")
        network = str(tmp_path / "window.onnx")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter that needs no onnxscript is an old one
            torch.onnx.export(source[0].eval(), (source[1],), network, dynamo=False)
    else:

        def network(batch):
            return from_torch(source, name="window")

    told = []
    boards = fpgapipe.chain_of(fpgapipe.load_board("u280"), 1)
    folder = tmp_path / "build"
    options = {"batch": 2, "micro_batches": 1, "array": (8, 8), "hardware": False}
    fpgapipe.build(network, boards, folder, on_note=told.append, **options)
    assert told
    assert told[0].startswith("verified against ")
    (mask,) = fixed_numbers(fpgapipe.open_build(folder).graph)
    ran = fpgapipe.run(folder, "model", data="random", steps=2, validates=False)
    assert math.isfinite(ran.summary.loss)
    again = fpgapipe.run(folder, "model", resume=True, more=1, validates=False)
    assert again.summary.ran == 1
    path = next(iter(CheckpointFolder(again.summary.folder / "checkpoints")))
    state = fpgapipe.read_checkpoint(path).state
    np.testing.assert_array_equal(state[mask], source[0].mask.numpy(), strict=True)
    assert fpgapipe.export(folder, tmp_path / "w.npz").step == 3

"""The comparison with PyTorch in the core's numbers: right results pass, wrong ones do not."""

from dataclasses import replace

import numpy as np
import pytest
from step_cases import SMALL_CORE

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.runtime.numeric_check import NumericCheck
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.frontends.torch.torch_contexts import normalised_plainly
from fpgapipe.network.frontends.torch.torch_program import from_torch
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

torch = pytest.importorskip("torch")
nn = torch.nn

PLANTED = 0.1
"""Norm of a planted error, relative to the tensor's."""


class Attention(nn.Module):
    """An attention whose softmax a large scale saturates, with the sum around it."""

    def __init__(self, width=16, scale=0.35):
        super().__init__()
        self.scale = scale
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        scores = (self.q(x) * self.scale) @ self.k(x).transpose(-1, -2)
        return x + self.out(scores.softmax(-1) @ self.v(x))


class Last(nn.Module):
    """The last position of a sequence."""

    def forward(self, x):
        return x[:, -1]


def attention(scale=0.35):
    return nn.Sequential(
        nn.LayerNorm(16), Attention(scale=scale), nn.Tanh(), nn.LayerNorm(16), Last(),
        nn.Linear(16, 5),
    )  # fmt: skip


def images():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.PReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.PReLU(8), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(128, 5),
    )  # fmt: skip


def tokens():
    return nn.Sequential(nn.Embedding(12, 8), Lstm(), Last(), nn.Linear(10, 5))


class Lstm(nn.Module):
    """The positions' results of an LSTM."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(8, 10, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


class Ran:
    """A training step of a module in the bit-exact model, to be checked."""

    def __init__(self, module, example, activations, seed=0):
        torch.manual_seed(seed)
        module = module()
        self.graph = graph = from_torch((module, (example,)), name="checked")
        self.options = StepOptions(activations=activations)
        pipeline = build_pipeline(
            graph,
            [SMALL_CORE],
            [list(graph.layers)],
            make_schedule("1f1b", 1, 1),
            options=self.options,
        )
        self.values = initial_parameters(graph, seed)
        self.model = ModelBackend(pipeline, self.values)
        self.before = self.model.state()
        batch = random_batch(graph, seed)
        self.given = self.before, *batch, scalar_bits()
        self.result = self.model.step(*batch, scalar_bits())
        self.gradients = self.model.parameters(".gradient")

    def check(self, **changes):
        """The first difference, and the shares of the tolerances."""
        second = TorchBackend(
            self.graph, self.values, options=self.options, precision="mxint8", device="cpu"
        )
        check = NumericCheck(second)
        kept = second.memories[0].copy()
        self.model.parameters = lambda suffix="": {
            name: value + changes.get("gradients", {}).get(name, 0)
            for name, value in self.gradients.items()
        }
        result = replace(self.result, loss=self.result.loss * changes.get("loss", 1))
        found = check.after(0, self.model, result, *self.given)
        assert kept.shape == second.memories[0].shape
        return found, check.worst


SEQUENCE = torch.zeros(2, 7, 16)


@pytest.mark.parametrize("scale", [3.0, 20.0])
def test_saturated_attentions_are_no_difference(scale):
    assert Ran(lambda: attention(scale), SEQUENCE, BF16).check()[0] is None


def test_gradients_that_cancel_are_no_difference():
    """The keys' bias has no influence: its gradient is what rounding leaves."""
    ran = Ran(attention, SEQUENCE, BF16)
    found, worst = ran.check()
    assert found is None
    assert max(worst.values()) < 0.01  # PyTorch's softmax has the device's rounding of its result
    key = next(name for name in ran.gradients if name.endswith("k.bias"))
    size = np.linalg.norm(ran.gradients[key.replace("bias", "weight")])
    assert np.linalg.norm(ran.gradients[key]) < 0.01 * size
    wrong = np.full(16, PLANTED * size / 4, np.float32)  # 10 % of the norm of the terms
    found, _ = ran.check(gradients={key: wrong})
    assert found is not None
    assert found.tensor == f"{key}.gradient"


class Means(nn.Module):
    """The mean of each channel."""

    def forward(self, x):
        return x.mean((2, 3))


@pytest.mark.parametrize("seed", range(4))
def test_the_mean_of_normalised_rows_is_no_difference(seed):
    """Gradients in front are what is left of the mean of equal terms, of the same sign in a row."""

    def module():
        return nn.Sequential(nn.Conv2d(1, 2, 1), nn.LayerNorm(3), Means())

    ran = Ran(module, torch.zeros(2, 1, 1, 3), BF16, seed)
    assert ran.check()[0] is None


@pytest.mark.parametrize("planes", [1, 4])
def test_normalised_volumes_of_one_column(planes):
    """PyTorch's own gradients of a batch norm are wrong where its axes are stored in odd order."""

    def module():
        return nn.Sequential(
            nn.Conv3d(3, 3, 1), nn.BatchNorm3d(3), nn.Conv3d(3, 9, 1, padding=1), nn.BatchNorm3d(9),
            nn.Flatten(), nn.Linear(9 * 9 * (planes + 2), 5),
        )  # fmt: skip

    ran = Ran(module, torch.zeros(3, 3, planes, 1, 1), BF16)
    assert ran.check()[0] is None


def test_batch_norms_have_the_gradients_of_plain_strides():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 3, 4, 1, 1, generator=rng).requires_grad_()
    dy = torch.randn(3, 4, 3, 1, 1, generator=rng).transpose(1, 2)

    def gradient(x, dy):
        y = normalised_plainly(nn.functional.batch_norm, x, None, None, training=True)
        return torch.autograd.grad(y, x, dy)[0]

    exact = gradient(x.double(), dy.double().contiguous())
    torch.testing.assert_close(gradient(x, dy).double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activations", [BF16, FP32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("module", "example", "zero"),
    [
        (attention, SEQUENCE, ["1.k.bias"]),
        (images, torch.zeros(2, 3, 8, 8), ["0.bias"]),
        (tokens, torch.zeros(3, 4, dtype=torch.int64), []),
    ],
    ids=["attention", "images", "tokens"],
)
def test_an_error_of_a_tenth_is_found_in_every_kind_of_tensor(module, example, zero, activations):
    """Also in the one slope of a PReLU; only what is zero in exact arithmetic has a test above."""
    ran = Ran(module, example, activations)
    assert ran.check()[0] is None
    rng = np.random.default_rng(1)
    largest = max(float(np.linalg.norm(each)) for each in ran.gradients.values())
    left_out = []
    for name, value in ran.gradients.items():
        size = float(np.linalg.norm(value))
        if size < 1e-3 * largest:
            left_out.append(name)
            continue
        error = rng.standard_normal(value.shape).astype(np.float32)
        error *= np.float32(1.01 * PLANTED * size / np.linalg.norm(error))
        found, _ = ran.check(gradients={name: error})
        assert found is not None, name
        assert found.tensor == f"{name}.gradient"
    assert left_out == zero
    found, _ = ran.check(loss=1 + PLANTED)
    assert found is not None
    assert found.tensor == "loss"


def test_a_small_loss_is_compared_by_its_own_size():
    """A loss of 0.01 that is a tenth off was within a tolerance for losses of about 1."""
    ran = Ran(lambda: nn.Sequential(nn.Linear(6, 5)), torch.zeros(4, 6), FP32)
    label = int(np.ravel(ran.given[2])[0])
    ran.given[2][...] = label
    ran.before["0.bias"][label] = 5.0
    ran.model.set_state(ran.before)
    ran.result = ran.model.step(*ran.given[1:])
    ran.gradients = ran.model.parameters(".gradient")
    assert ran.result.loss < 0.05
    assert ran.check()[0] is None
    assert ran.check(loss=1 + PLANTED)[0].tensor == "loss"


def test_disturbed_steps_leave_nothing_behind():
    ran = Ran(images, torch.zeros(2, 3, 8, 8), BF16)
    second = TorchBackend(
        ran.graph, ran.values, options=ran.options, precision="mxint8", device="cpu"
    )
    _, inputs, labels, scalars = ran.given
    once = second.step(inputs, labels, scalars)
    kept = second.memories[0].copy()
    with second.disturbed(3) as is_disturbed:
        assert is_disturbed
        second.set_state(ran.before)
        assert second.step(inputs, labels, scalars).loss != once.loss
    np.testing.assert_array_equal(second.memories[0], kept)
    with TorchBackend(ran.graph, ran.values, device="cpu").disturbed(3) as is_disturbed:
        assert not is_disturbed

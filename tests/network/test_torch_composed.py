"""Operators of PyTorch modules that become several layers, or are taken into other ones."""

import math

import pytest
from test_torch_imports import imported, weight

from fpgapipe.network.graph import NetworkError
from fpgapipe.network.operators import Conv, Pool

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch.nn import functional as F  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402


def image(s, x):
    """Images of one channel and of a sample."""
    return s.fc(x).reshape(1, 1, 4, 6)


def padded_and_overwritten(s, x):
    """The convolution reads what was padded before it was overwritten."""
    y = image(s, x)
    z = F.pad(y, (1, 0, 0, 2))
    y.mul_(3)
    return F.conv2d(z, s.w) + y.sum()


def scores_overwritten(s, x):
    y = s.fc(x)[:, :4]
    z = y + torch.full((4, 4), -math.inf).triu(1)
    y.mul_(3)
    return z.softmax(-1) @ y


@pytest.mark.parametrize(
    ("run", "parts"),
    [
        (lambda s, x: torch.addcmul(s.fc(x), s.w, x, value=0.5), {"w": weight(6)}),
        (lambda s, x: torch.addcmul(s.w, s.fc(x), x), {"w": weight(6)}),
        (lambda s, x: F.rms_norm(s.fc(x), (6,), s.w, 1e-3), {"w": weight(6)}),
        (lambda s, x: F.rms_norm(s.fc(x).reshape(4, 2, 3), (2, 3), None, 1e-3), {}),
        (lambda s, x: s.fc(x) * torch.linalg.vector_norm(s.fc(x), dim=1, keepdim=True), {}),
        (lambda s, x: s.fc(x).norm(dim=0), {}),
        # The gradient of the norm of zeros is zero.
        (lambda s, x: F.normalize(s.fc(x).relu() * 0 + F.relu(s.fc(x) - 2), dim=1), {}),
        (lambda s, x: (s.fc(x) * 0).norm(dim=1, keepdim=True) + s.fc(x), {}),
        # So is that of the standard deviation of equal values.
        (lambda s, x: (s.fc(x) * 0).std(1, keepdim=True) + s.fc(x), {}),
        (lambda s, x: F.relu(s.fc(x) - 2).std(-1, keepdim=True) * s.fc(x), {}),
        (lambda s, x: s.fc(x).repeat(2, 3), {}),
        (lambda s, x: s.fc(x).repeat(2, 1, 3), {}),
        (lambda s, x: s.fc(x).tile(1, 1), {}),
        (lambda s, x: s.fc(x).repeat_interleave(3, 1), {}),
        (lambda s, x: s.fc(x).repeat_interleave(2), {}),
        (lambda s, x: s.fc(x).reshape(4, 1, 2, 3).movedim((0, 3), (-1, 0)), {}),
        (lambda s, x: s.fc(x).movedim(1, 0), {}),
        (lambda s, x: s.fc(x).narrow(1, -3, 2), {}),
        (lambda s, x: F.pixel_shuffle(s.fc(x).reshape(1, 8, 1, 3), 2), {}),
        (lambda s, x: F.pixel_unshuffle(image(s, x), 2), {}),
        (lambda s, x: F.channel_shuffle(s.fc(x).reshape(1, 6, 2, 2), 3), {}),
        (lambda s, x: s.fc(x).reshape(2, 2, 3, 2).softmax(2), {}),
        (lambda s, x: s.fc(x).reshape(2, 2, 3, 2).log_softmax(-4), {}),
        (lambda s, x: s.fc(x).reshape(2, 2, 6) @ (s.w * 2), {"w": weight(6, 3)}),
        (lambda s, x: s.fc(x).reshape(2, 2, 6) @ (s.w * 2), {"w": weight(2, 1, 6, 3)}),
        (lambda s, x: (s.w * 2) @ s.fc(x).reshape(2, 6, 2), {"w": weight(3, 6)}),
        (lambda s, x: F.linear(s.fc(x).reshape(2, 2, 6), s.w * 2, s.b),
         {"w": weight(3, 6), "b": weight(3)}),
        (padded_and_overwritten, {"w": weight(2, 1, 2, 2)}),
        (scores_overwritten, {}),
    ],
)  # fmt: skip
def test_layers_compute_what_the_operator_does(run, parts):
    _, graph = imported(run, **parts)
    found = verify(graph, batches=1)
    assert found.verified, found


@pytest.mark.parametrize(
    ("run", "padding"),
    [
        (lambda s, x: F.conv2d(F.pad(image(s, x), (1, 0, 0, 2)), s.w, padding=1),
         ((1, 3), (2, 1))),
        (lambda s, x: F.conv2d(F.pad(image(s, x), (2, 1)), s.w), ((0, 0), (2, 1))),
        (lambda s, x: F.max_pool2d(F.pad(image(s, x), (0, 1, 0, 1), value=-math.inf), 2),
         ((0, 1), (0, 1))),
        (lambda s, x: F.conv2d(F.pad(image(s, x), (1, 0), value=1.0), s.w), None),
        (lambda s, x: F.conv2d(F.pad(image(s, x), (1, 0, 0, 0, 0, 1)), s.w.repeat(1, 2, 1, 1)),
         None),
        (lambda s, x: F.max_pool2d(F.pad(image(s, x), (0, 1, 0, 1)), 2), None),
        (lambda s, x: F.avg_pool2d(F.pad(image(s, x), (0, 1, 0, 1)), 2), None),
    ],
)  # fmt: skip
def test_padding_is_taken_into_the_windows(run, padding):
    """Padding of windows costs nothing, but has to be what the windows pad with."""
    buffer = weight(2, 1, 2, 2).detach()
    _, graph = imported(run, w=buffer)
    found = verify(graph, batches=1)
    assert found.verified, found
    (windows,) = (each for each in graph.layers.values() if isinstance(each.operator, Conv | Pool))
    kinds = {layer.op for layer in graph.layers.values()}
    assert ("pad" in kinds) == (padding is None)
    if padding is not None:
        assert windows.operator.padding == padding


def test_a_view_of_the_same_shape_is_no_layer():
    _, graph = imported(lambda s, x: s.fc(x.view(-1, 6).reshape(4, 6)))
    assert [layer.op for layer in graph.layers.values()] == ["linear"]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda s, x: s.fc(x).norm(p=1, dim=1), "only the root of the sum of squares"),
        (lambda s, x: s.fc(x).repeat(0, 1).sum() + x, "repeats nothing"),
    ],
)  # fmt: skip
def test_other_forms_are_refused(run, reason):
    with pytest.raises(NetworkError, match=reason):
        imported(run)

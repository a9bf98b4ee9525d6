"""Fixed indices and masks of PyTorch modules: the import is held to the module, or refused."""

import math

import pytest
from test_torch_imports import imported, weight

from fpgapipe.network.graph import NetworkError

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch.nn import functional as F  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402

PLACES = torch.tensor([[4, 0, 0], [2, 4, 1]])
HIDDEN = torch.tensor([[False, True, False, False, True, False]])
FUTURE = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)
LATE = torch.tensor([True, True, False]).expand(2, 1, 3, 3)


def kinds(graph):
    return {layer.op for layer in graph.layers.values()}


def heads(s, x, **options):
    """Attention of two heads over three positions."""
    y = s.fc(x).reshape(2, 2, 3, 2)
    return F.scaled_dot_product_attention(y, y * 2, y + 1, **options)


def eager(s, x, mask):
    y = s.fc(x).reshape(2, 2, 3, 2)
    return (y @ y.transpose(2, 3) + mask).softmax(-1) @ y


def few_heads(s, x):
    y = s.fc(x).reshape(1, 4, 3, 2)
    return F.scaled_dot_product_attention(y, y[:, :2] + 1, y[:, 2:], enable_gqa=True)


@pytest.mark.parametrize(
    ("run", "parts", "has", "has_not"),
    [
        (lambda s, x: s.fc(x) + F.embedding(torch.arange(4), s.w), {"w": weight(5, 6)},
         {"slice"}, {"select", "embedding"}),
        (lambda s, x: s.fc(x) + F.embedding(torch.zeros(4, dtype=torch.int64), s.w),
         {"w": weight(5, 6)}, {"slice", "expand"}, {"select", "embedding"}),
        (lambda s, x: s.fc(x).unsqueeze(1) + F.embedding(torch.arange(2).expand(4, 2), s.w),
         {"w": weight(2, 6)}, {"expand"}, {"select", "slice"}),
        (lambda s, x: s.fc(x)[:, :3] @ F.embedding(PLACES, s.w).sum(0), {"w": weight(5, 2)},
         {"select"}, {"embedding"}),
        (lambda s, x: s.fc(x)[:, :3] * s.w[PLACES][:, :, 1].sum(0), {"w": weight(5, 2)},
         {"select"}, set()),
        (lambda s, x: s.fc(x)[:, torch.tensor([-1, 0, 0, 3])], {}, {"select"}, set()),
        (lambda s, x: s.fc(x).reshape(4, 2, 3, 1)[:, [0, 1, 1, 0], [2, 0, 0, -1]], {},
         {"select"}, set()),
        (lambda s, x: s.fc(x).index_select(1, torch.tensor([5, 5, 2])), {}, {"select"}, set()),
        (lambda s, x: s.fc(x).index_select(-1, torch.tensor([2, 3, 4])), {}, {"slice"},
         {"select"}),
        (lambda s, x: s.fc(x).masked_fill(HIDDEN, 7.0), {}, {"mul", "add"}, set()),
        (lambda s, x: s.fc(x).masked_fill(HIDDEN, -math.inf).softmax(-1), {}, {"mul"}, set()),
        (lambda s, x: s.fc(x).masked_fill(HIDDEN & False, 7.0), {}, set(), {"mul", "add"}),
        (lambda s, x: torch.where(HIDDEN, s.fc(x), x), {}, {"mul", "add"}, set()),
        (lambda s, x: torch.where(HIDDEN, 0.0, s.fc(x)), {}, {"mul"}, {"add"}),
        (lambda s, x: torch.where(HIDDEN, s.fc(x), s.w), {"w": weight(6)}, {"mul"}, set()),
        (heads, {}, set(), {"add"}),
        (lambda s, x: heads(s, x, attn_mask=LATE), {}, {"add"}, set()),
        (lambda s, x: heads(s, x, attn_mask=LATE | True), {}, set(), {"constant"}),
        (lambda s, x: heads(s, x, attn_mask=torch.ones(3, 3).tril().bool()), {}, set(),
         {"constant"}),
        (lambda s, x: eager(s, x, FUTURE), {}, set(), {"add", "constant"}),
        (lambda s, x: eager(s, x, FUTURE.expand(2, 1, 3, 3)), {}, set(), {"add", "constant"}),
        (lambda s, x: eager(s, x, FUTURE.T), {}, {"add"}, set()),
        (lambda s, x: eager(s, x, FUTURE / 1e30), {}, {"add"}, set()),
        (few_heads, {}, {"expand"}, set()),
    ],
)  # fmt: skip
def test_what_is_fixed_selects_as_in_the_module(run, parts, has, has_not):
    _, graph = imported(run, **parts)
    found = verify(graph, batches=1)
    assert found.verified, found
    assert has <= kinds(graph)
    assert not has_not & kinds(graph)


def test_a_mask_that_samples_share_is_stored_once():
    _, graph = imported(lambda s, x: eager(s, x, FUTURE.T.expand(2, 2, 3, 3)))
    (mask,) = (each for each in graph.layers.values() if each.op == "constant")
    assert mask.output.shape == (1, 1, 3, 3)


def windows(s, x):
    """Regions of an image by numbers that are written to them, as Swin masks its attention."""
    y = s.fc(x)
    regions = y.new_zeros(4, 6)
    for number, part in enumerate((slice(0, 2), slice(2, -1), slice(-1, None))):
        regions[part, 1:4] = number
        regions[part].select(1, 5).fill_(2 * number)
    mask = regions.view(2, 12).unsqueeze(1) - regions.view(2, 12).unsqueeze(2)
    mask = mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)
    return (y.reshape(2, 12, 1) * y.reshape(2, 1, 12) + mask).softmax(-1)


def without_keys(s, x):
    """A part of a learned bias is never used, as in Swin's second version."""
    bias = s.fc.bias.clone()
    view = bias.view(2, 3)
    bias[2:4].zero_()
    bias[5] = 7.0
    return F.linear(x, s.fc.weight, bias) + view.sum()


def parts_of_results(s, x):
    """Computed values are overwritten in parts, and their views are read afterwards."""
    y = s.fc(x)
    left, right = y[:, :3], y[:, 3:]
    row = y[1]
    before = y * 2
    left[:, 1:].fill_(3.0)
    right[2].zero_()
    return y * before + row + left.sum() * right.sum()


@pytest.mark.parametrize("run", [windows, without_keys, parts_of_results])
def test_parts_are_overwritten_with_fixed_numbers(run):
    _, graph = imported(run)
    found = verify(graph, batches=1)
    assert found.verified, found


@pytest.mark.parametrize(
    ("run", "parts", "reason"),
    [
        (lambda s, x: s.fc(x)[:, x[0, :2].long()], {}, "only at indices that are fixed"),
        (lambda s, x: s.fc(x).reshape(4, 2, 3, 1)[[0, 1], :, [2, 0]], {},
         "only at indices of axes that follow one another"),
        (lambda s, x: s.fc(x) + F.embedding(torch.arange(4), s.w, padding_idx=1),
         {"w": weight(5, 6)}, "fixed indices must not select the row that is padding"),
        (lambda s, x: torch.where(x > s.fc(x), s.fc(x), x), {},
         "only a comparison of what is computed with one fixed number"),
    ],
)  # fmt: skip
def test_other_selections_are_refused(run, parts, reason):
    with pytest.raises(NetworkError, match=reason):
        imported(run, **parts)

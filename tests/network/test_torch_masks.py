"""Masks of PyTorch modules that are computed from inputs of the network."""

import math

import pytest

from fpgapipe.network.graph import NetworkError
from fpgapipe.network.mask_inputs import mask_inputs

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.lowering.units.network_units import refusals_of  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402

SAMPLES, POSITIONS, FEATURES, HEADS = 3, 5, 8, 2
LOWEST = torch.finfo(torch.float32).min


class Masked(nn.Module):
    """Attention whose scores a function masks, given the mask and the shape of the scores."""

    def __init__(self, run, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.run = run
        self.embedding = nn.Embedding(11, FEATURES)
        self.qkv = nn.Linear(FEATURES, 3 * FEATURES, bias=False)
        self.head = nn.Linear(FEATURES, 4)

    def forward(self, tokens, mask):
        x = self.embedding(tokens)
        shape = (SAMPLES, -1, HEADS, FEATURES // HEADS)
        q, k, v = (each.view(shape).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        y = self.run(q, k, v, mask)
        return self.head(y.transpose(1, 2).reshape(SAMPLES, -1, FEATURES))


def tokens():
    return torch.arange(SAMPLES * POSITIONS).reshape(SAMPLES, POSITIONS) % 11


def mask_of(dtype, *shape):
    return torch.ones(shape or (SAMPLES, POSITIONS), dtype=dtype)


def scored(masked):
    """Attention in the parts of which it consists."""

    def run(q, k, v, mask):
        return masked(q @ k.transpose(-1, -2) / 2, mask).softmax(-1) @ v

    return run


def attended(made, **more):
    """PyTorch's attention, given what a function makes of the mask."""

    def run(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=made(mask), **more)

    return run


def wide(mask):
    return mask[:, None, None, :].expand(SAMPLES, 1, POSITIONS, POSITIONS)


def huggingface(mask):
    """How transformers makes an additive mask of one that has 1 for each token."""
    inverted = 1.0 - wide(mask).to(torch.float32)
    return inverted.masked_fill(inverted.to(torch.bool), LOWEST)


def causal(shape=(POSITIONS, POSITIONS)):
    return torch.ones(shape, dtype=torch.bool).tril()


BOOL, INT = torch.bool, torch.int64

CASES = {
    "of numbers": (
        scored(lambda s, m: torch.where(m[:, None, None] > 0.5, s * 2, s)), torch.float32, 1,
    ),
    "fill where not": (scored(lambda s, m: s.masked_fill(~m[:, None, None], -math.inf)), BOOL, 1),
    "fill where 0": (scored(lambda s, m: s.masked_fill(m[:, None, None] == 0, -math.inf)), INT, 1),
    "fill in place": (scored(lambda s, m: s.masked_fill_(m.bool()[:, None, None], -1e9)), INT, 1),
    "where": (scored(lambda s, m: torch.where(m[:, None, None], s, LOWEST)), BOOL, 1),
    "where not": (scored(lambda s, m: torch.where(m[:, None, None] > 0, LOWEST, s)), INT, 1),
    "1 - mask times a number": (
        scored(lambda s, m: s + (1.0 - m[:, None, None]) * LOWEST), INT, 1,
    ),
    "-10000": (scored(lambda s, m: s + (1 - m[:, None, None].float()) * -10000.0), INT, 0),
    "of zeros": (
        scored(lambda s, m: s + torch.zeros_like(m, dtype=s.dtype).masked_fill_(m, -math.inf)
               .view(SAMPLES, 1, 1, POSITIONS)), BOOL, 1,
    ),
    "of a where": (
        scored(lambda s, m: s + torch.where(m, 0.0, -math.inf)[:, None, None]), BOOL, 1,
    ),
    "attention, booleans": (attended(lambda m: m[:, None, None]), BOOL, 1),
    "attention, wide booleans": (attended(wide), BOOL, 1),
    "attention, of zeros and ones": (attended(lambda m: wide(m != 0)), INT, 1),
    "attention, as transformers do": (attended(huggingface), INT, 1),
    "attention, causal as well": (attended(lambda m: m[:, None, None] & causal()), BOOL, 1),
    "attention, all or nothing": (
        attended(lambda m: (m[:, None, None] | ~m[:, None, :, None]) & causal()), BOOL, 1,
    ),
    "sums of masks": (
        scored(lambda s, m: s + (torch.zeros(POSITIONS, POSITIONS).masked_fill(~causal(), -math.inf)
               + torch.where(m, 0.0, LOWEST)[:, None, None])), BOOL, 0,
    ),
    "products": (scored(lambda s, m: s * m[:, None, None] * m[:, None, :, None]), INT, 0),
    "logical": (
        scored(lambda s, m: s.masked_fill(
            torch.logical_or(torch.logical_not(m)[:, None, None], ~causal()), -1e4)), BOOL, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mask_is_that_of_pytorch(case):
    run, dtype, filled = CASES[case]
    graph = from_torch((Masked(run), (tokens(), mask_of(dtype))), name="masked")
    result = verify(graph)
    assert result.verified, result
    ops = [layer.op for layer in graph.layers.values()]
    assert ("masked_fill" in ops) == bool(filled), ops
    assert not refusals_of(graph, train=True), refusals_of(graph, train=True)
    # Nothing but the comparison is computed of a mask that is applied where it is 0 or 1.
    plain = dtype in (BOOL, INT) and case != "logical" and "causal" not in case
    if filled and plain and "all" not in case:
        assert ops.count("compare") == 1
        assert not {"mul", "expand", "cast"} & set(ops)


def test_what_a_mask_hides_is_found():
    hidden = {}
    for case in ("fill where not", "fill in place", "1 - mask times a number", "of zeros"):
        run, dtype, _ = CASES[case]
        graph = from_torch((Masked(run), (tokens(), mask_of(dtype))), name="masked")
        hidden[case] = mask_inputs(graph)["mask"].hides
    assert hidden == {
        "fill where not": 0,
        "fill in place": 1,
        "1 - mask times a number": 0,
        "of zeros": 1,
    }


def test_tokens_that_are_padding():
    class Padded(Masked):
        def forward(self, tokens):
            return super().forward(tokens, tokens != 10)

    run, _, _ = CASES["attention, booleans"]
    graph = from_torch((Padded(run), (tokens(),)), name="masked")
    assert verify(graph).verified
    assert not refusals_of(graph, train=True)
    assert not mask_inputs(graph)


def test_an_average_over_what_a_mask_keeps():
    class Pooled(Masked):
        def forward(self, tokens, mask):
            x, own = self.embedding(tokens), mask.unsqueeze(-1)
            return self.head((x * own).sum(1) / own.sum(1).clamp(min=1e-9))

    graph = from_torch((Pooled(None), (tokens(), mask_of(INT))), name="pooled")
    assert verify(graph).verified
    assert not refusals_of(graph, train=True), refusals_of(graph, train=True)


@pytest.mark.parametrize("weights", [False, True])
def test_multi_head_attention(weights):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.own = nn.MultiheadAttention(FEATURES, HEADS, batch_first=True)
            self.head = nn.Linear(FEATURES, 3)

        def forward(self, x, padding):
            future = ~causal()
            y, _ = self.own(
                x, x, x, key_padding_mask=padding, need_weights=weights, attn_mask=future
            )
            return self.head(y)

    x = torch.randn(SAMPLES, POSITIONS, FEATURES)
    graph = from_torch((Attention(), (x, mask_of(BOOL) & False)), name="attention")
    assert verify(graph).verified
    assert not refusals_of(graph, train=True), refusals_of(graph, train=True)
    assert mask_inputs(graph)["padding"].hides == 1


def test_transformer_encoder_and_decoder():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.own = nn.Transformer(FEATURES, HEADS, 1, 1, 12, dropout=0.0, batch_first=True)
            self.head = nn.Linear(FEATURES, 3)

        def forward(self, x, y, padding, own):
            z = self.own(
                x, y, tgt_mask=~causal(), tgt_is_causal=False, src_key_padding_mask=padding,
                tgt_key_padding_mask=own, memory_key_padding_mask=padding,
            )  # fmt: skip
            return self.head(z)

    x, y = (torch.randn(SAMPLES, POSITIONS, FEATURES) for _ in range(2))
    masks = [mask_of(BOOL) & False for _ in range(2)]
    graph = from_torch((Both(), (x, y, *masks)), name="both")
    assert verify(graph).verified
    assert not refusals_of(graph, train=True), refusals_of(graph, train=True)
    assert {name: each.hides for name, each in mask_inputs(graph).items()} == {
        "padding": 1,
        "own": 1,
    }


def test_rows_that_a_mask_hides_wholly():
    """PyTorch's attention gives zeros, a softmax alone NaN or equal shares."""
    run, dtype, _ = CASES["attention, booleans"]
    graph = from_torch((Masked(run), (tokens(), mask_of(dtype))), name="masked")
    assert [each.operator.empty for each in graph.layers.values() if each.op == "softmax"] == [True]
    run, dtype, _ = CASES["fill where not"]
    graph = from_torch((Masked(run), (tokens(), mask_of(dtype))), name="masked")
    assert not any(getattr(each.operator, "empty", False) for each in graph.layers.values())


@pytest.mark.parametrize(
    ("run", "dtype", "message"),
    [
        (scored(lambda s, m: s.masked_fill(m[:, None, None] > m[:, None, :, None], 0)), INT,
         "only a comparison of what is computed with one fixed number"),
        (scored(lambda s, m: s + m.cumsum(-1)[:, None, None]), INT, "cumsum"),
        (scored(lambda s, m: s + (m[:, None, None] == 3) * 1.0 + m[:, None, None]), INT,
         "input 'mask' is computed with as a mask of zeros and ones, and layer"),
        (scored(lambda s, m: s * ~m[:, None, None]), INT,
         "only the opposite of booleans"),
        (scored(lambda s, m: s.masked_fill(m[:, None, None], s.sum())), BOOL,
         "only a fixed number in the place of what is hidden"),
    ],
)  # fmt: skip
def test_refuses(run, dtype, message):
    with pytest.raises(NetworkError) as error:
        from_torch((Masked(run), (tokens(), mask_of(dtype))), name="masked")
    assert message in str(error.value)

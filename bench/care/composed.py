"""Operators that several layers compute together: spreads, triangles, windows, cells, rotations."""

import torch
import torch.nn.functional as F
from torch import nn

from care.case import Case, buffer, conv, linear, net, parameter

VECTOR = (4, 12)
TOKENS = (3, 6, 16)


def over_rows(run, wide=12, **parts):
    """A linear layer, a function of its rows, and a linear layer."""
    return net(
        lambda s, x: s.fc(run(s, s.a(x))), VECTOR, a=linear(12, 12), fc=linear(wide), **parts
    )


def over_tokens(run, wide=16, **parts):
    """A linear layer, a function of its tokens, and a linear layer of their mean."""
    return net(
        lambda s, x: s.fc(run(s, s.a(x)).mean(1)),
        TOKENS,
        a=linear(16, 16),
        fc=linear(wide),
        **parts,
    )


def over_images(run, wide=8, **parts):
    """A convolution, a function of its images, and a linear layer of their means."""
    return net(
        lambda s, x: s.fc(run(s, s.c(x)).flatten(2).mean(2)), c=conv(), fc=linear(wide), **parts
    )


class Cells(nn.Module):
    """A decoder of a cell that is called for each position."""

    def __init__(self, cell, bias=True, encodes=False):
        super().__init__()
        self.cell, self.encodes = cell(16, 8, bias=bias), encodes
        self.fc = nn.Linear(8, 5)
        if encodes:
            self.start = nn.Linear(16, 8)

    def forward(self, x):
        """Run the module."""
        is_lstm = isinstance(self.cell, nn.LSTMCell)
        state = None
        if self.encodes:
            hidden = torch.tanh(self.start(x[:, 0]))
            state = (hidden, hidden * 2) if is_lstm else hidden
        found = []
        for position in x.unbind(1)[:3]:
            state = self.cell(position, state)
            found.append(state[0] if is_lstm else state)
        return self.fc(torch.stack(found, 1).sum(1))


class ReadsCell(nn.Module):
    """A cell whose hidden and cell states are both read."""

    def __init__(self):
        super().__init__()
        self.cell, self.fc = nn.LSTMCell(12, 8), nn.Linear(8, 5)

    def forward(self, x):
        """Run the module."""
        hidden, cell = self.cell(x)
        return self.fc(hidden + cell)


def frequencies(positions, pairs):
    """Rotations of pairs by position, as complex numbers."""
    angles = torch.outer(torch.arange(positions).float(), 0.5 ** torch.arange(pairs).float())
    return torch.polar(torch.ones_like(angles), angles)


class Rotary(nn.Module):
    """Attention of LLaMA's kind, whose queries and keys are rotated by complex numbers."""

    def __init__(self, *, learned=False):
        super().__init__()
        self.q, self.k, self.v, self.fc = (nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 5)
        self.learned = learned
        if learned:
            self.angle = nn.Parameter(torch.randn(1, 6, 1, 4, 2))
        else:
            self.register_buffer("turns", frequencies(8, 4))

    def turned(self, x):
        """Rotate pairs of features."""
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        if self.learned:
            turns = torch.view_as_complex(self.angle)
        else:
            turns = self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)

    def forward(self, x):
        """Run the module."""
        q, k, v = (each(x).view(*x.shape[:2], 2, 8) for each in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        y = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)))
        return self.head(self.fc(y.transpose(1, 2).flatten(2)).mean(1))


CASES: dict[str, Case] = {
    "var of rows": over_rows(lambda s, x: x * x.var(-1, keepdim=True)),
    "var, not unbiased": over_rows(lambda s, x: x * x.var(-1, unbiased=False, keepdim=True)),
    "var with a correction of 3": over_tokens(
        lambda s, x: x * x.var(2, correction=3, keepdim=True)
    ),
    "var of two axes": over_images(lambda s, x: x * x.var((2, 3), keepdim=True)),
    "var of all": over_rows(lambda s, x: x * x.var()),
    "std without its axis": over_images(lambda s, x: x + x.std((-1, -2))[:, :, None, None]),
    "std of rows": over_rows(lambda s, x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)),
    "std and mean": over_rows(
        lambda s, x: (lambda each: x * each[0] + each[1])(torch.std_mean(x, -1, keepdim=True))
    ),
    "logsumexp": over_rows(lambda s, x: x * torch.logsumexp(x, -1, keepdim=True)),
    "logsumexp of large values": over_tokens(
        lambda s, x: x + torch.logsumexp(60 * x, 1)[:, None] / 60
    ),
    "logsumexp of two axes": over_images(
        lambda s, x: x + torch.logsumexp(x, (-1, 2), keepdim=True)
    ),
    "logsumexp of channels": over_images(lambda s, x: x + torch.logsumexp(x, 1)[:, None]),
    "logsumexp with what a mask hides": over_tokens(
        lambda s, x: x * torch.logsumexp(x + s.m, -1, keepdim=True),
        m=lambda: torch.tensor([-1e30, 0.0] * 8),
    ),
    "amax and amin": over_rows(
        lambda s, x: x.amax(-1, keepdim=True) * x - x.amin(-1, keepdim=True)
    ),
    "amin without its axis": over_images(lambda s, x: x + x.amin((2, 3))[:, :, None, None]),
    "T of a weight": over_rows(lambda s, x: x @ s.w.T, w=parameter(12, 12)),
    "mT of a product": over_tokens(lambda s, x: (x @ x.mT) @ x / 16),
    "mT of a weight": over_rows(lambda s, x: x @ s.w.mT, w=parameter(12, 12)),
    "type_as": over_rows(lambda s, x: F.relu(x).type_as(x)),
    "tril of a product": over_tokens(lambda s, x: torch.tril(x @ x.mT) @ x / 16),
    "triu of a product": over_tokens(lambda s, x: torch.triu(x @ x.mT, 1) @ x / 16),
    "tril of a weight": over_rows(lambda s, x: F.linear(x, torch.tril(s.w)), w=parameter(12, 12)),
    "unfold of tokens": over_tokens(lambda s, x: x.unfold(1, 3, 2).flatten(2), wide=48),
    "unfold of images": over_images(lambda s, x: F.unfold(x, 3, padding=1, stride=2), wide=72),
    "unfold with a dilation": over_images(lambda s, x: F.unfold(x, (2, 3), dilation=2), wide=48),
    "einsum of three": over_tokens(
        lambda s, x: torch.einsum("nif,fg,njg->nij", x, s.w, x) @ x / 16, w=parameter(16, 16)
    ),
    "einsum of three with a sum of one alone": over_tokens(
        lambda s, x: torch.einsum("bif,fg,hg->bih", x, s.w, s.v), w=parameter(16, 8),
        v=parameter(16, 8),
    ),
    "einsum that only sums": over_tokens(
        lambda s, x: x * torch.einsum("nif->nf", x)[:, None]
    ),
    "a cell of an LSTM": Case(lambda: Cells(nn.LSTMCell), (TOKENS,)),
    "a cell of an LSTM with a state": Case(lambda: Cells(nn.LSTMCell, encodes=True), (TOKENS,)),
    "a cell of an LSTM without bias": Case(lambda: Cells(nn.LSTMCell, bias=False), (TOKENS,)),
    "a cell of an LSTM, both states": Case(ReadsCell, (VECTOR,)),
    "a cell of a GRU": Case(lambda: Cells(nn.GRUCell), (TOKENS,)),
    "a cell of a GRU with a state": Case(lambda: Cells(nn.GRUCell, encodes=True), (TOKENS,)),
    "rotary embeddings of complex numbers": Case(Rotary, (TOKENS,)),
    "a learned complex factor": Case(lambda: Rotary(learned=True), (TOKENS,)),
    "a fixed complex number is added": over_tokens(
        lambda s, x: torch.view_as_real(
            torch.complex(x[..., :8], x[..., 8:]) * s.t + torch.view_as_complex(s.t2)
        ).flatten(2),
        t=lambda: frequencies(6, 8), t2=buffer(6, 8, 2),
    ),
    "the real part of a product": over_tokens(
        lambda s, x: (lambda z: (z * z).real - z.imag)(
            torch.view_as_complex(x.unflatten(-1, (8, 2)).contiguous())
        ),
        wide=8,
    ),
}  # fmt: skip

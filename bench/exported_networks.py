"""Twelve kinds of PyTorch modules, which keep weights in all the ways that an export meets."""

from collections.abc import Callable

import torch
from torch import nn

WIDTH, CLASSES = 64, 10

Source = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Conv1D(nn.Module):
    """The linear layer of Hugging Face's GPT-2, whose weight has the inputs first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return found.view(*x.size()[:-1], self.weight.size(1))


class Attention(nn.Module):
    """Attention with one matrix for queries, keys and values, and a mask that is not kept."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)
        later = torch.full((8, 8), -1e4).triu(1)
        self.register_buffer("mask", later, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = x.shape
        shape = (samples, tokens, self.heads, width // self.heads)
        q, k, v = (each.view(shape).transpose(1, 2) for each in self.c_attn(x).split(width, 2))
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5 + self.mask
        y = scores.softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(samples, tokens, width))


class Gpt(nn.Module):
    """A GPT-2 in small: Conv1D, learned positions, a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(32, WIDTH), nn.Embedding(8, WIDTH)
        self.register_buffer("position_ids", torch.arange(8)[None])
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention(WIDTH, 2)
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(Conv1D(WIDTH, 128), nn.GELU(), Conv1D(128, WIDTH))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, 32, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(self.position_ids)
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return self.lm_head(self.ln_f(x))


class Recurrent(nn.Module):
    """Two layers of an LSTM or GRU over the rows of an image."""

    def __init__(self, kind: type[nn.Module], *, bidirectional: bool) -> None:
        super().__init__()
        self.rnn = kind(8, 32, 2, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(64 if bidirectional else 32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x.squeeze(1))[0][:, -1])


class Residual(nn.Module):
    """A sum of a block's input and result; one normalisation is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=2, bias=False)
        self.last = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x)).relu()
        x = x + self.last(self.norm(self.grouped(x))).relu()
        return self.head(x.mean((2, 3)))


class Windows(nn.Module):
    """Attention with a learned bias of relative positions, whose indices are a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 4, 4)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.randn(7, 2) / 5)
        places = torch.arange(4)
        self.register_buffer("relative_position_index", places[:, None] - places[None] + 3)
        self.register_buffer("scale", torch.tensor(32.0))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        bias = self.table[self.relative_position_index.view(-1)].view(t, t, 2).permute(2, 0, 1)
        scores = q @ k.transpose(-2, -1) * self.scale**-0.5 + bias
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c)
        return self.head((x + self.proj(y)).mean(1))


class Transformer(nn.Module):
    """An encoder of PyTorch's own, whose three projections are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(8, WIDTH)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH) / 5)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x.squeeze(1))
        x = torch.cat([self.cls_token.expand(x.size(0), -1, -1), x], 1)
        return self.head(self.encoder(x)[:, 0])


class Auxiliary(nn.Module):
    """A weight that nothing reads, one that does not learn, and a table of the import's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, WIDTH)
        self.unused = nn.Linear(WIDTH, 3)
        self.fixed = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8, requires_grad=False)
        self.register_buffer("mean", torch.full((64,), 0.25))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1) - 2 * self.mean
        return self.head((self.first(x).relu() @ self.fixed).relu())


def _images(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.zeros(batch, 1, 8, 8),)


def mlp(batch: int) -> Source:
    """Linear layers and a normalisation of rows."""
    layers = [nn.Flatten(), nn.Linear(64, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)), _images(batch)


def cnn(batch: int) -> Source:
    """Convolutions with batch normalisation and its counters."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, CLASSES)), _images(batch)


def mobile(batch: int) -> Source:
    """Depthwise and pointwise convolutions."""
    layers = [nn.Conv2d(1, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    layers += [nn.Conv2d(16, 16, 3, 2, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    layers += [nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, CLASSES)), _images(batch)


def residual(batch: int) -> Source:
    """Groups, a sum, and a batch normalisation that is used twice."""
    return Residual(), _images(batch)


def decoder(batch: int) -> Source:
    """A transposed convolution and a normalisation of groups."""
    layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU()]
    layers += [nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(256, CLASSES)), _images(batch)


def volume(batch: int) -> Source:
    """A convolution with three axes."""
    layers = [nn.Unflatten(2, (2, 4)), nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(512, CLASSES)), _images(batch)


def lstm(batch: int) -> Source:
    """An LSTM of two layers."""
    return Recurrent(nn.LSTM, bidirectional=False), _images(batch)


def gru(batch: int) -> Source:
    """A GRU of two layers in both directions."""
    return Recurrent(nn.GRU, bidirectional=True), _images(batch)


def gpt(batch: int) -> Source:
    """A GPT-2 in small."""
    return Gpt(), (torch.zeros(batch, 8, dtype=torch.int64),)


def transformer(batch: int) -> Source:
    """PyTorch's encoder layer."""
    return Transformer(), _images(batch)


def windows(batch: int) -> Source:
    """Attention with relative positions."""
    return Windows(), _images(batch)


def auxiliary(batch: int) -> Source:
    """Weights that are not read, or do not learn."""
    return Auxiliary(), _images(batch)


KINDS: tuple[Callable[[int], Source], ...] = (
    mlp, cnn, mobile, residual, decoder, volume, lstm, gru, gpt, transformer, windows, auxiliary,
)  # fmt: skip

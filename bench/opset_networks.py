"""Networks whose ONNX models `bench_opsets.py` makes at every opset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Own(nn.Module):
    """Layers by name, and a function of them and the inputs."""

    def __init__(self, run: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.run = run

    def forward(self, *inputs: Any) -> Any:
        """Compute the function."""
        return self.run(self.layers, *inputs)


def _conv(inputs: int, outputs: int, size: int = 3, **more: Any) -> nn.Module:
    return nn.Conv2d(inputs, outputs, size, padding=more.pop("padding", size // 2), **more)


def _block(inputs: int, outputs: int, act: nn.Module | None = None, **more: Any) -> nn.Module:
    return nn.Sequential(_conv(inputs, outputs, **more), nn.BatchNorm2d(outputs), act or nn.ReLU())


def _head(*layers: nn.Module, channels: int = 8) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def _act(act: nn.Module) -> nn.Module:
    return _head(_conv(3, 8), act, _conv(8, 8))


def _shuffled(layers: Any, x: Any) -> Any:
    x = layers["a"](x)
    x = x.reshape(x.shape[0], 2, 4, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
    return layers["b"](x)


def _mixed(layers: Any, x: Any) -> Any:
    x = layers["a"](x).flatten(2).transpose(1, 2)
    x = x + layers["tokens"](layers["norm"](x).transpose(1, 2)).transpose(1, 2)
    return layers["head"](x.mean(1))


def _attended(layers: Any, x: Any, memory: Any = None) -> Any:
    q = layers["q"](x)
    k, v = layers["kv"](x if memory is None else memory).chunk(2, -1)
    scores = q @ k.transpose(1, 2) / 4
    if memory is None:
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = scores.masked_fill(hidden, float("-inf"))
    return layers["out"](functional.gelu(scores.softmax(-1) @ v))


def _unet(layers: Any, x: Any) -> Any:
    first = layers["a"](x)
    low = layers["b"](functional.max_pool2d(first, 2))
    return layers["c"](torch.cat([first, functional.interpolate(low, scale_factor=2.0)], 1))


IMAGE, TOKENS, ROWS = (2, 3, 12, 12), (2, 6, 16), (2, 20)
Row = tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]


def _resized(**more: Any) -> Row:
    return (
        lambda: Own(lambda m, x: functional.interpolate(m["a"](x), **more), a=_conv(3, 4)),
        (IMAGE,),
    )


def _function(run: Callable[[Any], Any]) -> Row:
    return lambda: Own(
        lambda m, x: m["b"](run(m["a"](x))), a=nn.Linear(20, 12), b=nn.LazyLinear(3)
    ), (ROWS,)


def _image(make: Callable[[], nn.Module]) -> Row:
    return make, (IMAGE,)


def _recurrent(kind: Any, **more: Any) -> Row:
    width = 16 if more.get("bidirectional") else 8
    return (
        lambda: Own(
            lambda m, x: m["b"](m["a"](x)[0][:, -1]),
            a=kind(16, 8, batch_first=True, **more),
            b=nn.Linear(width, 3),
        ),
        (TOKENS,),
    )


NETWORKS: dict[str, Row] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5)), (ROWS,)),
    "cnn": _image(lambda: _head(_conv(3, 8), nn.ReLU(), _conv(8, 8, stride=2), nn.ReLU())),
    "batch norm": _image(lambda: _head(_block(3, 8), _block(8, 8))),
    "residual": _image(
        lambda: Own(
            lambda m, x: m["c"](torch.relu(m["a"](x) + m["b"](m["a"](x)))),
            a=_block(3, 8),
            b=_block(8, 8),
            c=_head(),
        )
    ),
    "depthwise": _image(lambda: _head(_block(3, 8), _block(8, 8, groups=8), _block(8, 8, size=1))),
    "groups": _image(lambda: _head(_block(3, 8), _block(8, 8, groups=2))),
    "relu6": _image(lambda: _head(_block(3, 8, nn.ReLU6()), _block(8, 8, nn.ReLU6(), groups=8))),
    "squeeze": _image(
        lambda: Own(
            lambda m, x: m["c"](m["a"](x) * torch.sigmoid(m["b"](m["a"](x).mean((2, 3), True)))),
            a=_block(3, 8, nn.Hardswish()),
            b=_conv(8, 8, 1),
            c=_head(),
        )
    ),
    "maximum pooling": _image(
        lambda: _head(_conv(3, 8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), _conv(8, 8), nn.MaxPool2d(2))
    ),
    "ceiling": _image(lambda: _head(_conv(3, 8), nn.MaxPool2d(3, 2, ceil_mode=True))),
    "average pooling": _image(
        lambda: _head(_conv(3, 8), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(2, 1, 0))
    ),
    "transposed": _image(
        lambda: nn.Sequential(_conv(3, 8, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1))
    ),
    "unet": _image(lambda: Own(_unet, a=_block(3, 8), b=_block(8, 8), c=_conv(16, 3))),
    "nearest": _resized(scale_factor=2.0, mode="nearest"),
    "bilinear": _resized(size=(20, 30), mode="bilinear"),
    "aligned corners": _resized(size=(20, 30), mode="bilinear", align_corners=True),
    "bicubic": _resized(scale_factor=2.0, mode="bicubic"),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(6, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
        ),
        (TOKENS,),
    ),
    "conv3d": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Flatten(),
            nn.Linear(108, 3),
        ),
        ((2, 2, 6, 6, 6),),
    ),
    "dilated": _image(lambda: _head(_conv(3, 8, dilation=2, padding=2), nn.ReLU(), _conv(8, 8))),
    "lstm": _recurrent(nn.LSTM),
    "two lstms": _recurrent(nn.LSTM, num_layers=2),
    "both directions": _recurrent(nn.LSTM, bidirectional=True),
    "gru": _recurrent(nn.GRU),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (TOKENS,)),
    "normalised first": (
        lambda: nn.TransformerEncoderLayer(
            16, 4, 32, activation="gelu", batch_first=True, norm_first=True
        ),
        (TOKENS,),
    ),
    "attention": (
        lambda: Own(
            lambda m, x: m["a"](x, x, x)[0], a=nn.MultiheadAttention(16, 2, batch_first=True)
        ),
        (TOKENS,),
    ),
    "causal": (
        lambda: Own(_attended, q=nn.Linear(16, 16), kv=nn.Linear(16, 32), out=nn.Linear(16, 16)),
        (TOKENS,),
    ),
    "cross attention": (
        lambda: Own(_attended, q=nn.Linear(16, 16), kv=nn.Linear(16, 32), out=nn.Linear(16, 16)),
        (TOKENS, (2, 9, 16)),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)),
        (TOKENS,),
    ),
    "group norm": _image(lambda: _head(_conv(3, 8), nn.GroupNorm(2, 8), nn.ReLU())),
    "instance norm": _image(
        lambda: _head(_conv(3, 8), nn.InstanceNorm2d(8, affine=True), nn.ReLU())
    ),
    "local norm": _image(lambda: _head(_conv(3, 8), nn.ReLU(), nn.LocalResponseNorm(5))),
    "prelu": _image(lambda: _act(nn.PReLU(8))),
    "one slope": _image(lambda: _act(nn.PReLU())),
    "elu": _image(lambda: _act(nn.Sequential(nn.ELU(), nn.SELU(), nn.CELU(1.3)))),
    "gelu": _image(lambda: _act(nn.GELU())),
    "silu": _image(lambda: _act(nn.SiLU())),
    "mish": _image(lambda: _act(nn.Mish())),
    "softplus": _image(
        lambda: _act(nn.Sequential(nn.Softplus(), nn.Softsign(), nn.LeakyReLU(0.2)))
    ),
    "hard": _image(lambda: _act(nn.Sequential(nn.Hardsigmoid(), nn.Hardtanh(), nn.Tanh()))),
    "reflection": _image(lambda: _head(nn.ReflectionPad2d(2), _conv(3, 8, padding=0))),
    "replication": _image(lambda: _head(nn.ReplicationPad2d((1, 2, 0, 1)), _conv(3, 8))),
    "zero padding": _image(lambda: _head(nn.ConstantPad2d((1, 2, 0, 1), 0.5), _conv(3, 8))),
    "dense": _image(
        lambda: Own(
            lambda m, x: m["c"](torch.cat([m["a"](x), m["b"](m["a"](x)), x], 1)),
            a=_block(3, 8),
            b=_block(8, 8),
            c=_conv(19, 4, 1),
        )
    ),
    "shuffle": _image(
        lambda: Own(_shuffled, a=_block(3, 8, groups=1), b=_head(_conv(8, 8, groups=2)))
    ),
    "mixer": _image(
        lambda: Own(
            _mixed,
            a=nn.Conv2d(3, 8, 4, 4),
            norm=nn.LayerNorm(8),
            tokens=nn.Linear(9, 9),
            head=nn.Linear(8, 3),
        )
    ),
    "softmax": _function(lambda x: x.softmax(-1)),
    "log softmax": _function(lambda x: x.reshape(2, 3, 4).log_softmax(1).flatten(1)),
    "arithmetic": _function(
        lambda x: (x.abs() + 1).sqrt() / (x.exp() + 2) - x.pow(2) + (x * x + 1).log()
    ),
    "bounds": _function(lambda x: torch.maximum(x.clamp(-0.5, 0.7), x.clamp(min=0.1) * 0.3)),
    "gate": _function(lambda x: functional.glu(x, -1)),
    "reductions": _function(
        lambda x: torch.cat([x.mean(1, True), x.amax(1, True), x.sum(1, True)], 1)
    ),
    "slices": _function(lambda x: torch.cat([x[:, ::2], x[:, 3:9], -x[:, -2:]], 1)),
}
"""Networks made with PyTorch, and the shapes of their inputs."""

QUANTISED = ("mlp", "cnn", "batch norm", "residual", "maximum pooling", "average pooling")
"""Networks that onnxruntime's quantiser makes QDQ models of."""

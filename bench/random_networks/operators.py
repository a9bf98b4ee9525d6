"""Operators of random networks: how their options are drawn, and the PyTorch code of each.

The code is text with names in braces: ``{0}`` and ``{1}`` are the values that the operator reads,
``{m}`` its module, ``{c}`` the size of axis 1 of the first value, ``{f}`` that of its last axis,
``{shape}`` its shape, and others are the operator's options. An option that is text may have such
names, too, so that a layer follows the values before it when these are made smaller.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]
Options = dict[str, Any]

CHANNELS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 12, 15, 16, 16, 17, 20, 24, 31, 32, 32, 33, 40, 48, 63, 64),
    *(64, 65, 96, 97, 127, 128, 130),
)
"""Channels that are drawn, with those beside the borders of blocks and words."""

PRELUDE = '''\
class Attention(nn.Module):
    """Attention as it is written by hand."""

    def __init__(self, features, heads, causal, own):
        super().__init__()
        self.heads, self.causal, self.own = heads, causal, own
        self.qkv = nn.Linear(features, 3 * features)
        self.proj = nn.Linear(features, features)

    def forward(self, x):
        n, t, f = x.shape
        qkv = self.qkv(x).reshape(n, t, 3, self.heads, f // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.own:
            scores = q @ k.transpose(-2, -1) * (f // self.heads) ** -0.5
            if self.causal:
                mask = torch.ones(t, t, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(mask, float("-inf"))
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(n, t, f))
'''
"""Module that some networks have."""


class Draw(random.Random):
    """Random numbers, and the choices that several operators have in common."""

    def some(self, *values: Any) -> Any:
        """One of the values."""
        return self.choice(values)

    def chance(self, share: float) -> bool:
        """Whether something of this share happens."""
        return self.random() < share

    def channels(self) -> int:
        """A number of channels or features."""
        return self.choice(CHANNELS)

    def divisor(self, number: int) -> int:
        """A number that divides another one."""
        return self.choice([n for n in range(1, number + 1) if number % n == 0])

    def sizes(self, axes: int, *values: int) -> list[int]:
        """A number for each axis, often the same one."""
        if self.chance(0.6):
            return [self.choice(values)] * axes
        return [self.choice(values) for _ in range(axes)]


Drawn = Callable[[Draw, list[Shape]], Options | None]


@dataclass(frozen=True)
class Operator:
    """An operator of random networks.

    Attributes
    ----------
    run : str
        Expression of its result.
    ranks : tuple of int
        Numbers of axes that its first value may have; those that are there twice are more likely.
    module : str
        Expression of its module, or empty.
    draw : callable
        Draws the options for shapes; returns None if the operator does not fit them.
    weight : float
        How often it is drawn.
    values : int
        Values that it reads.
    simple : dict
        Options that make it simpler, for the minimiser.
    random : bool
        Whether it draws random numbers in training.
    """

    run: str
    ranks: tuple[int, ...]
    module: str = ""
    draw: Drawn = lambda draw, shapes: {}
    weight: float = 1.0
    values: int = 1
    simple: Options = field(default_factory=dict)
    random: bool = False


ANY = (2, 3, 4)
MODULE_RUN = "{m}({0})"


def _conv(draw: Draw, shapes: list[Shape]) -> Options:
    channels, axes = shapes[0][1], len(shapes[0]) - 2
    kind = draw.some("plain", "plain", "groups", "depthwise", "pointwise")
    groups: Any = 1
    out: Any = draw.channels()
    if kind == "groups":
        groups = draw.divisor(channels)
        out = groups * draw.some(1, 2, 3, 4, max(1, channels // groups))
    elif kind == "depthwise":
        groups = "{c}"
        out = draw.some("{c}", "{c}", "2 * {c}")
    kernel = [1] * axes if kind == "pointwise" else draw.sizes(axes, 1, 2, 3, 3, 3, 4, 5)
    dilation = draw.sizes(axes, 1, 1, 1, 1, 2, 3)
    mode = "zeros" if draw.chance(0.9) else draw.some("reflect", "replicate", "circular")
    stride = draw.sizes(axes, 1, 1, 1, 2, 2, 3)
    padding: Any = draw.sizes(axes, 0, 1, 1, 2)
    if draw.chance(0.4):
        padding = [d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    elif draw.chance(0.1) and set(stride) == {1}:
        padding = "'same'"
    return {
        "axes": axes,
        "out": out,
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw.chance(0.7),
        "mode": mode,
    }


def _conv_transpose(draw: Draw, shapes: list[Shape]) -> Options:
    channels, axes = shapes[0][1], len(shapes[0]) - 2
    groups = draw.divisor(channels) if draw.chance(0.25) else 1
    stride = draw.sizes(axes, 1, 2, 2, 3)
    return {
        "axes": axes,
        "out": groups * draw.some(1, 2, 5, max(1, draw.channels() // groups)),
        "kernel": draw.sizes(axes, 1, 2, 3, 4),
        "stride": stride,
        "padding": draw.sizes(axes, 0, 0, 1),
        "output_padding": [draw.randrange(s) for s in stride],
        "groups": groups,
        "bias": draw.chance(0.7),
        "dilation": draw.sizes(axes, 1, 1, 1, 2),
    }


def _pool(draw: Draw, shapes: list[Shape]) -> Options:
    axes = len(shapes[0]) - 2
    kernel = draw.sizes(axes, 1, 2, 2, 3, 3)
    return {
        "axes": axes,
        "kernel": kernel,
        "stride": draw.sizes(axes, 1, 2, 2, 3),
        "padding": [draw.randrange(k // 2 + 1) for k in kernel],
        "ceil": draw.chance(0.2),
        "dilation": draw.sizes(axes, 1, 1, 1, 2),
        "counted": draw.chance(0.5),
    }


def _adaptive(draw: Draw, shapes: list[Shape]) -> Options:
    axes = len(shapes[0]) - 2
    return {"axes": axes, "size": draw.sizes(axes, 1, 2, 3, 4, 5)}


def _axes(draw: Draw, shapes: list[Shape]) -> Options:
    return {"axes": len(shapes[0]) - 2}


def _groups(draw: Draw, shapes: list[Shape]) -> Options:
    return {"groups": draw.divisor(shapes[0][1]), "affine": draw.chance(0.8)}


def _affine(draw: Draw, shapes: list[Shape]) -> Options:
    return {"axes": len(shapes[0]) - 2, "affine": draw.chance(0.6)}


def _linear(draw: Draw, shapes: list[Shape]) -> Options:
    return {"out": draw.channels(), "bias": draw.chance(0.8)}


def _normalised(draw: Draw, shapes: list[Shape]) -> Options:
    last = draw.some(1, 1, 1, 2) if len(shapes[0]) > 2 else 1
    return {"last": last, "affine": draw.chance(0.9), "eps": draw.some(1e-5, 1e-6, 1e-3)}


def _rms(draw: Draw, shapes: list[Shape]) -> Options:
    return {"eps": draw.some(1e-5, 1e-6, None), "affine": draw.chance(0.9)}


ACTIVATIONS = (
    *("ReLU()", "ReLU()", "ReLU()", "ReLU6()", "LeakyReLU({slope})", "ELU()", "ELU({slope})"),
    *("SELU()", "CELU()", "GELU()", "GELU(approximate='tanh')", "SiLU()", "Mish()", "Softplus()"),
    *("Sigmoid()", "Tanh()", "Hardsigmoid()", "Hardswish()", "Hardtanh()", "LogSigmoid()"),
    *("PReLU()", "PReLU({c})", "Softsign()", "Tanhshrink()", "Threshold(0.1, 0.0)", "Softmin(-1)"),
    *("Softmax(-1)", "Softmax(1)", "LogSoftmax(-1)", "Identity()", "Dropout(0.0)"),
    "Softshrink()",
)


def _activation(draw: Draw, shapes: list[Shape]) -> Options:
    return {"kind": draw.choice(ACTIVATIONS), "slope": draw.some(0.01, 0.2, 0.5)}


FUNCTIONS = (
    *("{0} * 0.5 + 1.0", "1.0 - {0}", "-{0}", "{0}.abs()", "torch.exp({0}.clamp(max=2.0))"),
    *("{0}.clamp(-0.7, 1.1)", "{0}.square()", "({0}.abs() + 0.5).sqrt()", "{0} / 3.0"),
    *("({0}.abs() + 0.5).log()", "({0}.abs() + 0.5).rsqrt()", "1.0 / ({0}.abs() + 0.5)"),
    *("{0} ** 3", "torch.erf({0})", "{0}.contiguous()", "{0}.clone()", "{0} + {0}", "{0} * {0}"),
    *("{0} - {0}.mean(-1, keepdim=True)", "{0} / ({0}.abs().sum(-1, keepdim=True) + 1.0)"),
    *("{0} * torch.sigmoid({0}.mean((-2, -1), keepdim=True))", "torch.where({0} > 0, {0}, 0.1)"),
    *("{0}.masked_fill({0} > 1.0, 0.5)", "F.normalize({0}, dim=1)", "{0}.sin()", "{0}.detach()"),
    *("{0} * {0}.softmax(1)", "{0}.float()", "torch.maximum({0}, -{0})", "{0}.abs().log1p()"),
    *("{0} - {0}.amax(-1, keepdim=True)", "F.relu({0}, inplace=False)", "{0}.floor() + {0}"),
    "F.softplus({0}, beta=2.0)",
)
"""Functions that keep the shape."""

VIEWS = (
    *("{0}.transpose(-1, -2)", "{0}.transpose(1, -1)", "{0}.permute({order})", "{0}.flip(-1)"),
    *("{0}.roll(1, -1)", "{0}.roll({half}, 1)", "{0}[:, {begin}:]", "{0}[..., ::2]", "{0}[:, ::2]"),
    *("{0}[..., {begin}:]", "{0}[:, -2:]", "{0}.narrow(-1, 0, {half})", "{0}.chunk(2, 1)[0]"),
    *("{0}.chunk(2, 1)[1]", "{0}.split({half}, -1)[-1]", "{0}.split({half}, 1)[0]"),
    *("{0}.unsqueeze(1).squeeze(1)", "{0}.flatten(1)", "{0}.flatten(-2)", "{0}.flatten(1, -2)"),
    *("{0}.flatten(2)", "{0}.repeat_interleave(2, 1)", "torch.cat([{0}, {0}], 1)"),
    *("torch.stack([{0}, -{0}], 1).flatten(1, 2)", "{0}.unfold(-1, 2, 1).flatten(-2)"),
    *("{0}.index_select(-1, torch.tensor([0, {last}, 0]))", "{0}[:, torch.tensor([0, 0, {half}])]"),
    *("{0}.reshape({n}, -1)", "{0}.reshape({n}, {c}, -1)", "{0}.reshape({n}, {c}, 1, -1)"),
    *("{0}.reshape({n}, 2, -1)", "{0}.reshape({n}, -1, {half})", "{0}.unflatten(1, (1, -1))"),
    *("{0}.unsqueeze(-1).expand({wide}, 2).flatten(-2)", "{0}.select(-1, {half})", "{0}[:, 0]"),
    *("{0}.select(1, -1)", "{0}.movedim(1, -1)", "{0}.mT", "{0}.swapaxes(1, -1).contiguous()"),
    *("{0}.repeat({ones})", "F.pad({0}, (1, 0))", "F.pad({0}, (0, 2), value=0.5)", "{0}.tril()"),
    *("{0}.view({n}, -1)", "{0}.unbind(1)[0]", "torch.stack({0}.unbind(1), 1)"),
)
"""Functions that move elements: views, slices, joins."""


def _function(draw: Draw, shapes: list[Shape]) -> Options:
    return {"kind": draw.choice(FUNCTIONS)}


def _view(draw: Draw, shapes: list[Shape]) -> Options:
    shape = shapes[0]
    order = list(range(1, len(shape)))
    draw.shuffle(order)
    return {
        "kind": draw.choice(VIEWS),
        "order": ", ".join(map(str, [0, *order])),
        "half": max(1, min(shape[1], shape[-1]) // 2),
        "begin": draw.some(1, 1, -1, 2),
        "last": shape[-1] - 1,
        "n": shape[0],
        "wide": "*{shape}",
        "ones": ", ".join(["1", *["2" if a == 1 else "1" for a in range(1, len(shape))]]),
    }


REDUCTIONS = (
    *("mean(-1)", "sum(-1)", "mean(1)", "sum(1)", "amax(-1)", "mean((1, -1))", "mean(-2)"),
    *("mean(-1, keepdim=True)", "sum(1, keepdim=True)", "amax(1, keepdim=True)", "amin(-1)"),
    *("mean((2, 3))", "sum((-2, -1))", "mean((2, 3), keepdim=True)", "amax((-2, -1))"),
    *("var(-1)", "std(-1)", "logsumexp(-1)", "norm(dim=-1)", "max(-1).values", "min(1)[0]"),
)


def _reduction(draw: Draw, shapes: list[Shape]) -> Options:
    return {"kind": draw.choice(REDUCTIONS)}


def _binary(draw: Draw, shapes: list[Shape]) -> Options:
    return {
        "kind": draw.some(
            *("{0} + {1}", "{0} + {1}", "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} * 0.5 + {1}"),
            *("torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "{0} / ({1}.abs() + 1.0)"),
            *("torch.add({0}, {1}, alpha=2)", "torch.where({1} > 0, {0}, {1})"),
            *("torch.lerp({0}, {1}, 0.3)", "{0} * torch.sigmoid({1})", "{0} * {1}.mean()"),
            "torch.addcmul({0}, {1}, {1})",
        )
    }  # fmt: skip


def _concat(draw: Draw, shapes: list[Shape]) -> Options | None:
    one, two = shapes
    if len(one) != len(two):
        return None
    axes = [a for a in range(1, len(one)) if one[:a] + one[a + 1 :] == two[:a] + two[a + 1 :]]
    if not axes:
        return None
    axis = draw.choice(axes)
    return {"axis": draw.some(axis, axis - len(one))}


def _matmul(draw: Draw, shapes: list[Shape]) -> Options | None:
    one, two = shapes
    if len(one) != len(two) or len(one) < 3 or one[:-2] != two[:-2]:
        return None
    if one[-1] == two[-1]:
        return {"kind": draw.some("{0} @ {1}.transpose(-1, -2)", "torch.matmul({0}, {1}.mT) * 0.2")}
    if one[-1] == two[-2]:
        return {"kind": "{0} @ {1}"}
    return None


def _attention(draw: Draw, shapes: list[Shape]) -> Options | None:
    features = shapes[0][-1]
    heads = draw.divisor(features)
    if features > 96 or heads > 8:
        return None
    return {
        "heads": heads,
        "causal": draw.chance(0.3),
        "own": draw.chance(0.5),
        "hidden": draw.some(8, 16, 33, 64),
        "first": draw.chance(0.5),
        "function": draw.some("'relu'", "'gelu'"),
        "bias": draw.chance(0.7),
    }


def _recurrent(draw: Draw, shapes: list[Shape]) -> Options | None:
    if shapes[0][1] > 8:
        return None
    kind = draw.some("LSTM", "LSTM", "GRU", "GRU", "RNN")
    return {
        "kind": kind,
        "hidden": draw.some(4, 8, 16, 24, 32, 33),
        "layers": draw.some(1, 1, 1, 2),
        "both": draw.chance(0.3),
        "bias": draw.chance(0.85),
        "result": draw.some("[0]", "[0]", "[0]", "[1][-1]" if kind != "LSTM" else "[1][0][-1]"),
    }


def _upsample(draw: Draw, shapes: list[Shape]) -> Options:
    mode = draw.some("nearest", "nearest", "bilinear", "bicubic", "nearest-exact")
    corners = draw.some(True, False) if mode in ("bilinear", "bicubic") else None
    return {"factor": draw.some(2, 2, 3, 1.5), "mode": mode, "corners": corners}


def _pad(draw: Draw, shapes: list[Shape]) -> Options:
    return {
        "kind": draw.some("ZeroPad2d", "ReflectionPad2d", "ReplicationPad2d", "CircularPad2d"),
        "sides": [draw.randrange(3) for _ in range(4)],
    }


def _shuffle(draw: Draw, shapes: list[Shape]) -> Options | None:
    channels = shapes[0][1]
    kinds = ["PixelUnshuffle(2)"]
    if channels % 4 == 0:
        kinds.append("PixelShuffle(2)")
    if channels % 2 == 0:
        kinds.append("ChannelShuffle(2)")
    return {"kind": draw.choice(kinds)}


def _parameter(draw: Draw, shapes: list[Shape]) -> Options:
    return {
        "kind": draw.some(
            *("{0} + {m}", "{0} * {m}", "{0} + {m}.exp()", "{0} * torch.sigmoid({m})"),
            *("{m} - {0}", "{0} * (1 + {m})", "torch.addcmul({0}, {0}, {m})"),
        ),
        "over": draw.some("{shape}[-1:]", "{shape}[1:]", "[{c}] + [1] * (len({shape}) - 2)", "[1]"),
    }


def _product(draw: Draw, shapes: list[Shape]) -> Options:
    return {"out": draw.channels(), "kind": draw.some("{0} @ {m}", "torch.matmul({0}, {m} * 0.5)")}


def _dropout(draw: Draw, shapes: list[Shape]) -> Options:
    return {"rate": draw.some(0.1, 0.3, 0.5)}


def _learned(draw: Draw, shapes: list[Shape]) -> Options:
    return {"out": draw.some(4, 8, 16, 32, 33, 48), "bag": draw.some("mean", "sum")}


OPERATORS: dict[str, Operator] = {
    "conv": Operator(
        MODULE_RUN, (3, 4, 4, 4, 5),
        "nn.Conv{axes}d({c}, {out}, {kernel}, {stride}, {padding}, {dilation}, {groups}, {bias}, "
        "padding_mode='{mode}')",
        _conv, 7.0,
        simple={"stride": None, "dilation": None, "padding": None, "kernel": None, "groups": 1,
                "bias": True, "mode": "zeros"},
    ),
    "conv_transpose": Operator(
        MODULE_RUN, (3, 4, 5),
        "nn.ConvTranspose{axes}d({c}, {out}, {kernel}, {stride}, {padding}, {output_padding}, "
        "{groups}, {bias}, {dilation})",
        _conv_transpose, 1.0, simple={"groups": 1, "bias": True},
    ),
    "max_pool": Operator(
        MODULE_RUN, (3, 4, 5),
        "nn.MaxPool{axes}d({kernel}, {stride}, {padding}, {dilation}, ceil_mode={ceil})",
        _pool, 1.5, simple={"ceil": False},
    ),
    "avg_pool": Operator(
        MODULE_RUN, (3, 4, 5),
        "nn.AvgPool{axes}d({kernel}, {stride}, {padding}, {ceil}, {counted})",
        _pool, 1.2, simple={"ceil": False, "counted": True},
    ),
    "adaptive_avg": Operator(
        MODULE_RUN, (3, 4, 5), "nn.AdaptiveAvgPool{axes}d({size})", _adaptive, 0.7,
    ),
    "adaptive_max": Operator(
        MODULE_RUN, (4,), "nn.AdaptiveMaxPool{axes}d({size})", _adaptive, 0.2,
    ),
    "batch_norm": Operator(MODULE_RUN, (4, 5), "nn.BatchNorm{axes}d({c})", _axes, 2.5),
    "batch_norm1d": Operator(MODULE_RUN, (2, 3), "nn.BatchNorm1d({c})", weight=0.7),
    "group_norm": Operator(
        MODULE_RUN, ANY, "nn.GroupNorm({groups}, {c}, affine={affine})", _groups, 1.0,
        simple={"groups": 1, "affine": True},
    ),
    "instance_norm": Operator(
        MODULE_RUN, (3, 4, 5), "nn.InstanceNorm{axes}d({c}, affine={affine})", _affine, 0.7,
        simple={"affine": True},
    ),
    "layer_norm": Operator(
        MODULE_RUN, ANY, "nn.LayerNorm({shape}[-{last}:], eps={eps}, elementwise_affine={affine})",
        _normalised, 1.2, simple={"last": 1, "affine": True, "eps": 1e-5},
    ),
    "rms_norm": Operator(
        MODULE_RUN, ANY, "nn.RMSNorm({f}, eps={eps}, elementwise_affine={affine})", _rms, 0.7,
        simple={"eps": 1e-5, "affine": True},
    ),
    "response_norm": Operator(MODULE_RUN, (4,), "nn.LocalResponseNorm(3)", weight=0.2),
    "activation": Operator(
        MODULE_RUN, ANY, "nn.{kind}", _activation, 6.0, simple={"kind": "ReLU()"}
    ),
    "linear": Operator(
        MODULE_RUN, (2, 2, 3, 3, 4), "nn.Linear({f}, {out}, bias={bias})", _linear, 2.0,
        simple={"bias": True}
    ),
    "function": Operator("{kind}", ANY, "", _function, 2.5, simple={"kind": "-{0}"}),
    "view": Operator("{kind}", (2, 3, 3, 4), "", _view, 3.0, simple={"kind": "{0}.flatten(1)"}),
    "reduction": Operator("{0}.{kind}", (3, 4), "", _reduction, 0.8),
    "binary": Operator("{kind}", ANY, "", _binary, 3.0, values=2, simple={"kind": "{0} + {1}"}),
    "concat": Operator("torch.cat([{0}, {1}], {axis})", ANY, "", _concat, 2.0, values=2),
    "matmul": Operator("{kind}", (3, 4), "", _matmul, 1.5, values=2),
    "attention": Operator(
        MODULE_RUN, (3, 3), "Attention({f}, {heads}, {causal}, {own})", _attention, 2.0,
        simple={"heads": 1, "causal": False, "own": True},
    ),
    "multihead": Operator(
        "{m}({0}, {0}, {0}, need_weights=False)[0]", (3, 3),
        "nn.MultiheadAttention({f}, {heads}, bias={bias}, batch_first=True)", _attention, 1.0,
        simple={"heads": 1, "bias": True},
    ),
    "cross_attention": Operator(
        "{m}({0}, {0}[:, :1], {0}[:, :1])[0]", (3,),
        "nn.MultiheadAttention({f}, {heads}, bias={bias}, batch_first=True)", _attention, 0.4,
        simple={"heads": 1, "bias": True},
    ),
    "encoder": Operator(
        MODULE_RUN, (3, 3),
        "nn.TransformerEncoderLayer({f}, {heads}, {hidden}, 0.0, {function}, batch_first=True, "
        "norm_first={first})",
        _attention, 1.2, simple={"heads": 1, "first": False, "function": "'relu'"},
    ),
    "decoder": Operator(
        "{m}({0}, {0})", (3,),
        "nn.TransformerDecoderLayer({f}, {heads}, {hidden}, 0.0, {function}, batch_first=True, "
        "norm_first={first})",
        _attention, 0.4, simple={"heads": 1, "first": False, "function": "'relu'"},
    ),
    "recurrent": Operator(
        "{m}({0}){result}", (3, 3),
        "nn.{kind}({f}, {hidden}, {layers}, {bias}, batch_first=True, bidirectional={both})",
        _recurrent, 1.5, simple={"layers": 1, "both": False, "bias": True, "result": "[0]"},
    ),
    "upsample": Operator(
        MODULE_RUN, (4,),
        "nn.Upsample(scale_factor={factor}, mode='{mode}', align_corners={corners})",
        _upsample, 0.8, simple={"mode": "nearest", "corners": None, "factor": 2},
    ),
    "pad": Operator(MODULE_RUN, (4,), "nn.{kind}({sides})", _pad, 0.5),
    "shuffle": Operator(MODULE_RUN, (4,), "nn.{kind}", _shuffle, 0.5),
    "parameter": Operator(
        "{kind}", ANY, "nn.Parameter(torch.randn({over}) * 0.3)", _parameter, 1.2,
        simple={"kind": "{0} + {m}"},
    ),
    "product": Operator(
        "{kind}", (2, 3), "nn.Parameter(torch.randn({f}, {out}) * 0.2)", _product, 0.6,
        simple={"kind": "{0} @ {m}"},
    ),
    "dropout": Operator(MODULE_RUN, ANY, "nn.Dropout({rate})", _dropout, 0.4, random=True),
    "embedding": Operator(MODULE_RUN, (), "nn.Embedding({rows}, {out})", _learned),
    "bag": Operator(MODULE_RUN, (), "nn.EmbeddingBag({rows}, {out}, mode='{bag}')", _learned),
}  # fmt: skip
"""Operators by name. Those without ranks read indices, and are drawn for the input alone."""

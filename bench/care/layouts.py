"""Ranks and layouts: flattened images, layers on tensors of other ranks, logits."""

import torch.nn.functional as F
from torch import nn

from care.case import IMAGE, Case, conv, linear, net

FLAT = 8 * 64
SIGNAL = (4, 6, 10)
VOLUME = (4, 2, 4, 6, 5)
VECTOR = (4, 12)


def _mean(x):
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def _flat(**parts):
    return {"c": conv(), "fc": linear(FLAT), **parts}


def head(s, x):
    return s.fc(_mean(F.relu(s.c(x))))


CASES: dict[str, Case] = {
    "flattened, linear": net(lambda s, x: s.fc(F.relu(s.c(x)).flatten(1)), **_flat()),
    "flattened, BatchNorm1d, linear": net(
        lambda s, x: s.fc(s.bn(s.c(x).flatten(1))), **_flat(bn=lambda: nn.BatchNorm1d(FLAT))
    ),
    "flattened, ReLU, linear": net(lambda s, x: s.fc(F.relu(s.c(x).flatten(1))), **_flat()),
    "flattened, leaky ReLU, linear": net(
        lambda s, x: s.fc(F.leaky_relu(s.c(x).flatten(1), 0.2)), **_flat()
    ),
    "flattened plus linear": net(
        lambda s, x: s.fc(F.relu(s.c(x).flatten(1) + s.e(x.flatten(1)))),
        **_flat(e=linear(192, FLAT)),
    ),
    "linear plus flattened": net(
        lambda s, x: s.fc(F.relu(s.e(x.flatten(1)) + s.c(x).flatten(1))),
        **_flat(e=linear(192, FLAT)),
    ),
    "two flattened added": net(
        lambda s, x: s.fc(F.relu(s.c(x).flatten(1) + s.d(x).flatten(1))), **_flat(d=conv())
    ),
    "flattened for two linear layers": net(
        lambda s, x: (lambda y: s.fc(y) + s.e(y))(F.relu(s.c(x)).flatten(1)),
        **_flat(e=linear(FLAT)),
    ),
    "flattened for a linear layer and a normalisation": net(
        lambda s, x: (lambda y: s.fc(y) + s.e(F.relu(s.bn(y))))(s.c(x).flatten(1)),
        **_flat(e=linear(FLAT), bn=lambda: nn.BatchNorm1d(FLAT)),
    ),
    "an image used flattened and as it is": net(
        lambda s, x: (lambda y: s.fc(y.flatten(1)) + s.e(_mean(s.d(y))))(F.relu(s.c(x))),
        **_flat(d=conv(8), e=linear(8)),
    ),
    "flattened logits of many pixels": net(
        lambda s, x: s.c(x).flatten(1), c=conv(3, 2, 3, padding=0, stride=3)
    ),
    "flattened logits of one pixel": net(
        lambda s, x: s.c(x).flatten(1), c=conv(3, 5, 8, padding=0)
    ),
    "pooled logits": net(lambda s, x: _mean(s.c(x)), c=conv(3, 5)),
    "logits of four dimensions": net(lambda s, x: s.c(x), c=conv(3, 5)),
    "logits of three dimensions": net(lambda s, x: s.c(x), SIGNAL, c=lambda: nn.Conv1d(6, 5, 3)),
    "logits by sample and position": net(lambda s, x: s.fc(x), (4, 7, 6), fc=linear(6)),
    "flattened from the second axis": net(
        lambda s, x: s.fc(s.c(x).flatten(2).mean(2)), c=conv(), fc=linear(8)
    ),
    "flattened of samples and channels": net(
        lambda s, x: s.fc(s.c(x).flatten(0, 1).flatten(1)).reshape(4, -1), c=conv(), fc=linear(64)
    ),
    "flattened of nothing but ones": net(
        lambda s, x: s.fc(F.adaptive_avg_pool2d(s.c(x), 1).flatten(1, 2).flatten(1)),
        c=conv(),
        fc=linear(8),
    ),
    "flattened input": net(
        lambda s, x: s.fc(F.relu(s.e(x.flatten(1)))), e=linear(192, 16), fc=linear(16)
    ),
    "flattened after uneven pooling": net(
        lambda s, x: s.fc(F.max_pool2d(s.c(x), (2, 4)).flatten(1)), c=conv(), fc=linear(8 * 8)
    ),
    "dropout of nothing after flatten": net(
        lambda s, x: s.fc(F.dropout(s.c(x).flatten(1), 0.0)), **_flat()
    ),
    "linear on an image": net(
        lambda s, x: s.fc(s.e(s.c(x)).flatten(1)), c=conv(), e=linear(8, 6), fc=linear(8 * 8 * 6)
    ),
    "linear on an image as wide as its channels": net(
        lambda s, x: s.fc(s.e(s.c(x)).flatten(1)), c=conv(), e=linear(8, 8), fc=linear(FLAT)
    ),
    "linear on the input image": net(
        lambda s, x: s.fc(F.relu(s.e(x)).flatten(1)), e=linear(8, 3), fc=linear(3 * 8 * 3)
    ),
    "linear on channels last": net(
        lambda s, x: s.fc(_mean(s.e(s.c(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))),
        c=conv(),
        e=linear(8, 8),
        fc=linear(8),
    ),
    "linear on three dimensions": net(
        lambda s, x: s.fc(F.relu(s.e(x)).flatten(1)), (4, 3, 6), e=linear(6, 8), fc=linear(24)
    ),
    "linear on five dimensions": net(
        lambda s, x: s.fc(F.relu(s.e(x)).flatten(1)), VOLUME, e=linear(5, 2), fc=linear(96)
    ),
    "linear on three dimensions, averaged": net(
        lambda s, x: s.fc(F.relu(s.e(x)).mean(1)), (4, 3, 6), e=linear(6, 8), fc=linear(8)
    ),
    "BatchNorm1d on vectors": net(
        lambda s, x: s.fc(F.relu(s.bn(s.e(x)))),
        VECTOR,
        e=linear(12, 8),
        bn=lambda: nn.BatchNorm1d(8),
        fc=linear(8),
    ),
    "BatchNorm1d on signals": net(
        lambda s, x: s.fc(F.relu(s.bn(x)).flatten(1)),
        SIGNAL,
        bn=lambda: nn.BatchNorm1d(6),
        fc=linear(60),
    ),
    "BatchNorm1d on signals as long as their channels": net(
        lambda s, x: s.fc(F.relu(s.bn(s.e(x))).flatten(1)),
        (4, 6, 6),
        e=linear(6, 6),
        bn=lambda: nn.BatchNorm1d(6),
        fc=linear(36),
    ),
    "BatchNorm1d on an image's rows": net(
        lambda s, x: s.fc(F.relu(s.bn(s.c(x).flatten(2))).flatten(1)),
        **_flat(bn=lambda: nn.BatchNorm1d(8)),
    ),
    "BatchNorm3d": net(
        lambda s, x: s.fc(F.relu(s.bn(x)).flatten(1)),
        VOLUME,
        bn=lambda: nn.BatchNorm3d(2),
        fc=linear(240),
    ),
    "Conv1d": net(
        lambda s, x: s.fc(F.relu(s.c(x)).flatten(1)),
        SIGNAL,
        c=lambda: nn.Conv1d(6, 4, 3),
        fc=linear(32),
    ),
    "Conv3d": net(
        lambda s, x: s.fc(F.relu(s.c(x)).flatten(1)),
        VOLUME,
        c=lambda: nn.Conv3d(2, 3, 3, padding=1),
        fc=linear(360),
    ),
    "AvgPool1d on vectors of one channel": net(
        lambda s, x: s.fc(F.avg_pool1d(s.e(x).unsqueeze(1), 2).squeeze(1)),
        VECTOR,
        e=linear(12, 8),
        fc=linear(4),
    ),
    "MaxPool1d": net(lambda s, x: s.fc(F.max_pool1d(x, 2).flatten(1)), SIGNAL, fc=linear(30)),
    "mean of both spatial axes": net(
        lambda s, x: s.fc(F.relu(s.c(x)).mean((2, 3))), c=conv(), fc=linear(8)
    ),
    "mean of both spatial axes, kept": net(
        lambda s, x: s.fc(s.d(F.relu(s.c(x)).mean((-1, -2), keepdim=True)).flatten(1)),
        c=conv(),
        d=conv(8, 8, 1),
        fc=linear(8),
    ),
    "mean of one axis, then the other": net(
        lambda s, x: s.fc(s.c(x).mean(3).mean(2)), c=conv(), fc=linear(8)
    ),
    "mean of the channels": net(
        lambda s, x: s.fc(s.c(x).mean(1).flatten(1)), c=conv(), fc=linear(64)
    ),
    "mean of channels and rows": net(
        lambda s, x: s.fc(s.c(x).mean((1, 2))), c=conv(), fc=linear(8)
    ),
    "sum of both spatial axes": net(lambda s, x: s.fc(s.c(x).sum((2, 3))), c=conv(), fc=linear(8)),
    "maximum of both spatial axes": net(
        lambda s, x: s.fc(s.c(x).amax((2, 3))), c=conv(), fc=linear(8)
    ),
    "global maximum pooling": net(
        lambda s, x: s.fc(F.adaptive_max_pool2d(s.c(x), 1).flatten(1)), c=conv(), fc=linear(8)
    ),
    "adaptive pooling to two": net(
        lambda s, x: s.fc(F.adaptive_avg_pool2d(s.c(x), 2).flatten(1)), c=conv(), fc=linear(32)
    ),
    "adaptive pooling to three of eight": net(
        lambda s, x: s.fc(F.adaptive_avg_pool2d(s.c(x), 3).flatten(1)), c=conv(), fc=linear(72)
    ),
    "the samples on the second axis": net(
        lambda s, x: s.fc(F.relu(s.c(x.transpose(0, 1).contiguous().transpose(0, 1))).flatten(1)),
        **_flat(),
    ),
    "a batch of one": net(head, (1, *IMAGE[1:]), c=conv(), fc=linear(8)),
    "an image of one pixel": net(head, (4, 3, 1, 1), c=conv(), fc=linear(8)),
    "a row of pixels": net(head, (4, 3, 1, 9), c=conv(), fc=linear(8)),
    "a column of pixels": net(
        lambda s, x: s.fc(s.c(x).flatten(1)), (4, 3, 9, 1), c=conv(), fc=linear(72)
    ),
    "one channel, one class more": net(
        lambda s, x: s.fc(s.c(x).flatten(1)), (4, 1, 5, 7), c=conv(1, 1), fc=linear(35, 2)
    ),
    "a single class": net(lambda s, x: s.fc(s.c(x).flatten(1)), c=conv(), fc=linear(FLAT, 1)),
    "two inputs": Case(
        lambda: _two_inputs(),
        ((4, 3, 8, 8), (4, 7)),
    ),
}


def _two_inputs():
    from care.case import Net

    return Net(
        lambda s, x, v: s.fc(F.relu(_mean(s.c(x)) + s.e(v))),
        c=conv()(), e=linear(7, 8)(), fc=linear(8)(),
    )  # fmt: skip

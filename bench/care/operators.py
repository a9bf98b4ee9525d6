"""Unusual normalisations, paddings, pooling, functions, outputs and types."""

import torch
import torch.nn.functional as F
from torch import nn

from care.case import Case, Net, buffer, conv, linear, net

FLAT = 8 * 64
POOLED = {"c": conv(), "fc": linear(8)}


def _mean(x):
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def _normalised(make):
    return net(lambda s, x: s.fc(_mean(F.relu(s.n(s.c(x))))), n=make, **POOLED)


def _convolved(**options):
    """Use a convolution with such options between two others."""
    return net(
        lambda s, x: s.fc(_mean(F.relu(s.d(s.c(x))))),
        c=conv(), d=lambda: nn.Conv2d(8, 8, **options), fc=linear(8),
    )  # fmt: skip


def _between(function, features=8):
    """Compute something between a convolution and the head."""
    return net(lambda s, x: s.fc(_mean(function(s.c(x)))), c=conv(), fc=linear(features))


def _flat(function, features):
    return net(lambda s, x: s.fc(function(s.c(x)).flatten(1)), c=conv(), fc=linear(features))


def _evaluated():
    class Evaluated(nn.Module):
        """A network whose normalisation stays in evaluation mode."""

        def __init__(self):
            super().__init__()
            self.c, self.bn, self.fc = conv()(), nn.BatchNorm2d(8), linear(8)()
            nn.init.normal_(self.bn.running_mean)
            self.bn.eval()

        def train(self, mode=True):
            super().train(mode)
            self.bn.eval()
            return self

        def forward(self, x):
            return self.fc(_mean(F.relu(self.bn(self.c(x)))))

    return Evaluated()


def _noise(s, x):
    y = s.c(x)
    return s.fc(_mean(y + torch.randn_like(y)))


def _depth(s, x):
    y = s.c(x)
    keep = torch.rand(len(y), 1, 1, 1) < 0.5
    return s.fc(_mean(y + F.relu(s.d(y)) * keep))


def _depth_batch(s, x):
    y = s.c(x)
    keep = torch.empty(1).bernoulli_(0.5)
    return s.fc(_mean(y + F.relu(s.d(y)) * keep))


class Mode(nn.Module):
    """A network that computes something else in training."""

    def __init__(self):
        super().__init__()
        self.c, self.fc = conv()(), linear(8)()

    def forward(self, x):
        """Double in training."""
        y = _mean(F.relu(self.c(x)))
        return self.fc(y * 2 if self.training else y)


def _branch(s, x):
    y = s.c(x)
    if y.sum() > 0:
        y = -y
    return s.fc(_mean(y))


def _loop(s, x):
    for _ in range(3):
        x = F.relu(s.c(x))
    return s.fc(_mean(x))


CASES: dict[str, Case] = {
    # Batch normalisation and its kin
    "BN: momentum=None": _normalised(lambda: nn.BatchNorm2d(8, momentum=None)),
    "BN: momentum=0.5": _normalised(lambda: nn.BatchNorm2d(8, momentum=0.5)),
    "BN: momentum=0": _normalised(lambda: nn.BatchNorm2d(8, momentum=0.0)),
    "BN: no running statistics": _normalised(lambda: nn.BatchNorm2d(8, track_running_stats=False)),
    "BN: affine=False": _normalised(lambda: nn.BatchNorm2d(8, affine=False)),
    "BN: eps=0.1": _normalised(lambda: nn.BatchNorm2d(8, eps=0.1)),
    "BN: in evaluation mode": Case(_evaluated),
    "BN: of the input": net(
        lambda s, x: s.fc(_mean(F.relu(s.c(s.n(x))))), n=lambda: nn.BatchNorm2d(3), **POOLED
    ),
    "BN: two in a row": net(
        lambda s, x: s.fc(_mean(s.m(s.n(s.c(x))))),
        n=lambda: nn.BatchNorm2d(8),
        m=lambda: nn.BatchNorm2d(8),
        **POOLED,
    ),
    "BN: of the logits": net(
        lambda s, x: s.n(s.fc(_mean(F.relu(s.c(x))))), n=lambda: nn.BatchNorm1d(5), **POOLED
    ),
    "BN: after the ReLU": net(
        lambda s, x: s.fc(_mean(s.n(F.relu(s.c(x))))), n=lambda: nn.BatchNorm2d(8), **POOLED
    ),
    "SyncBatchNorm": _normalised(lambda: nn.SyncBatchNorm(8)),
    "InstanceNorm2d": _normalised(lambda: nn.InstanceNorm2d(8)),
    "GroupNorm": _normalised(lambda: nn.GroupNorm(2, 8)),
    "LayerNorm": _normalised(lambda: nn.LayerNorm([8, 8, 8])),
    "LocalResponseNorm": _normalised(lambda: nn.LocalResponseNorm(2)),
    # Convolutions and their padding
    "padding 'same', even kernel": _convolved(kernel_size=4, padding="same"),
    "padding 'same', dilated": _convolved(kernel_size=3, padding="same", dilation=2),
    "padding 'valid'": _convolved(kernel_size=3, padding="valid"),
    "padding of one axis": _convolved(kernel_size=3, padding=(1, 0)),
    "stride by axis": _convolved(kernel_size=3, stride=(2, 1), padding=1),
    "stride beyond the kernel": _convolved(kernel_size=1, stride=3),
    "stride that leaves rows over": _convolved(kernel_size=3, stride=2),
    "kernel of one row": _convolved(kernel_size=(1, 5), padding=(0, 2)),
    "kernel beyond the image": _convolved(kernel_size=9, padding=4),
    "kernel as the image": _convolved(kernel_size=8),
    "padding beyond the kernel": _convolved(kernel_size=1, padding=2),
    "dilation": _convolved(kernel_size=3, dilation=3, padding=3),
    "reflected padding": _convolved(kernel_size=3, padding=1, padding_mode="reflect"),
    "replicated padding": _convolved(kernel_size=3, padding=1, padding_mode="replicate"),
    "circular padding": _convolved(kernel_size=3, padding=1, padding_mode="circular"),
    "groups": _convolved(kernel_size=3, padding=1, groups=2),
    "depthwise": _convolved(kernel_size=3, padding=1, groups=8),
    "transposed convolution": net(
        lambda s, x: s.fc(_mean(F.relu(s.d(s.c(x))))),
        c=conv(),
        d=lambda: nn.ConvTranspose2d(8, 8, 2, 2),
        fc=linear(8),
    ),
    "F.pad, uneven, then convolution": net(
        lambda s, x: s.fc(_mean(F.relu(s.d(F.pad(s.c(x), (0, 1, 2, 0)))))),
        d=conv(8, 8, 3, padding=0),
        **POOLED,
    ),
    "F.pad with ones": net(
        lambda s, x: s.fc(_mean(F.relu(s.d(F.pad(s.c(x), (1, 1, 1, 1), value=1.0))))),
        d=conv(8, 8, 3, padding=0),
        **POOLED,
    ),
    "F.pad of less than nothing": _between(lambda y: F.relu(F.pad(y, (-1, -1, -2, 0)))),
    "F.pad of the channels": _between(lambda y: F.pad(y, (0, 0, 0, 0, 1, 2)), 11),
    "F.pad, then maximum": _between(lambda y: F.max_pool2d(F.pad(y, (1, 1, 1, 1)), 2)),
    "F.pad, then average": _between(lambda y: F.avg_pool2d(F.pad(y, (1, 1, 1, 1)), 2)),
    # Pooling
    "maximum with padding": _flat(lambda y: F.max_pool2d(y, 3, 2, 1), 128),
    "maximum, ceil_mode": _flat(lambda y: F.max_pool2d(y, 3, 2, ceil_mode=True), 128),
    "maximum, ceil_mode, odd": _flat(lambda y: F.max_pool2d(y, 3, 3, ceil_mode=True), 72),
    "maximum, overlapping": _flat(lambda y: F.max_pool2d(y, 3, 1), 288),
    "maximum, dilated": _flat(lambda y: F.max_pool2d(y, 2, 2, dilation=2), 72),
    "maximum, stride beyond the window": _flat(lambda y: F.max_pool2d(y, 1, 3), 72),
    "average with padding": _flat(lambda y: F.avg_pool2d(y, 3, 2, 1), 128),
    "average, count_include_pad=False": _flat(
        lambda y: F.avg_pool2d(y, 3, 2, 1, count_include_pad=False), 128
    ),
    "average, ceil_mode": _flat(lambda y: F.avg_pool2d(y, 3, 2, ceil_mode=True), 128),
    "average, ceil_mode with padding": _flat(
        lambda y: F.avg_pool2d(y, 3, 2, 1, ceil_mode=True), 200
    ),
    "average, divisor_override": _flat(lambda y: F.avg_pool2d(y, 2, divisor_override=3), 128),
    "average of uneven windows": _flat(lambda y: F.avg_pool2d(y, (2, 4), (1, 2)), 168),
    "lp_pool": _between(lambda y: F.lp_pool2d(y, 2, 2)),
    "interpolated": _between(lambda y: F.interpolate(y, scale_factor=2)),
    # Functions
    "leaky ReLU, slope 0": _between(lambda y: F.leaky_relu(y, 0.0)),
    "leaky ReLU, slope 1": _between(lambda y: F.leaky_relu(y, 1.0)),
    "leaky ReLU, slope 2": _between(lambda y: F.leaky_relu(y, 2.0)),
    "leaky ReLU, slope -1": _between(lambda y: F.leaky_relu(y, -1.0)),
    "ReLU6": _between(F.relu6),
    "hardtanh from 0": _between(lambda y: F.hardtanh(y, 0.0, 1e9)),
    "PReLU": net(lambda s, x: s.fc(_mean(s.p(s.c(x)))), p=lambda: nn.PReLU(8), **POOLED),
    "GELU": _between(F.gelu),
    "sigmoid": _between(torch.sigmoid),
    "threshold": _between(lambda y: F.threshold(y, 0.1, 0.0)),
    "threshold to 20": _between(lambda y: F.threshold(y, 0.1, 20.0)),
    "absolute value": _between(torch.abs),
    "halved": _between(lambda y: y / 2),
    "plus a number": _between(lambda y: F.relu(y + 0.25)),
    "a power": _between(lambda y: y**2),
    "rounded": _between(torch.round),
    "sign": _between(torch.sign),
    "softmax of the logits": net(lambda s, x: s.fc(_mean(s.c(x))).softmax(1), **POOLED),
    "softmax of the samples": net(lambda s, x: s.fc(_mean(s.c(x))).softmax(0), **POOLED),
    "log_softmax of the logits": net(lambda s, x: s.fc(_mean(s.c(x))).log_softmax(-1), **POOLED),
    "ReLU of the logits": net(lambda s, x: F.relu(s.fc(_mean(s.c(x)))), **POOLED),
    "the logits doubled": net(lambda s, x: s.fc(_mean(s.c(x))) * 2, **POOLED),
    # Random numbers, modes, control
    "dropout": Case(
        lambda: Net(
            lambda s, x: s.fc(F.dropout(_mean(s.c(x)), 0.5, s.training)), c=conv()(), fc=linear(8)()
        ),
        random=True,
    ),
    "dropout, always": Case(
        lambda: Net(lambda s, x: s.fc(F.dropout(_mean(s.c(x)), 0.5)), c=conv()(), fc=linear(8)()),
        random=True,
    ),
    "dropout of everything": net(
        lambda s, x: s.fc(F.dropout(_mean(s.c(x)), 1.0, s.training)), **POOLED
    ),
    "dropout of channels": Case(
        lambda: Net(
            lambda s, x: s.fc(_mean(F.dropout2d(s.c(x), 0.5, s.training))),
            c=conv()(),
            fc=linear(8)(),
        ),
        random=True,
    ),
    "noise": Case(lambda: Net(_noise, c=conv()(), fc=linear(8)()), random=True),
    "stochastic depth": Case(
        lambda: Net(_depth, c=conv()(), d=conv(8)(), fc=linear(8)()), random=True
    ),
    "stochastic depth of the batch": Case(
        lambda: Net(_depth_batch, c=conv()(), d=conv(8)(), fc=linear(8)()), random=True
    ),
    "another computation in training": Case(Mode),
    "a branch by value": net(_branch, **POOLED),
    "a loop over one layer": net(_loop, c=conv(3, 3), fc=linear(3)),
    # Outputs, inputs, types
    "a tuple of outputs": net(lambda s, x: (lambda y: (s.fc(y), y))(_mean(s.c(x))), **POOLED),
    "a dictionary of outputs": net(lambda s, x: {"logits": s.fc(_mean(s.c(x)))}, **POOLED),
    "a list of one": net(lambda s, x: [s.fc(_mean(s.c(x)))], **POOLED),
    "the input as an output": net(lambda s, x: x, **POOLED),
    "a constant output": net(lambda s, x: s.b + 0.0, b=buffer(4, 5)),
    "an input that nothing uses": Case(
        lambda: Net(lambda s, x, v: s.fc(_mean(s.c(x))), c=conv()(), fc=linear(8)()),
        ((4, 3, 8, 8), (4, 2)),
    ),
    "float64": net(
        lambda s, x: s.fc(_mean(s.c(x.double())).float()), c=lambda: conv()().double(), fc=linear(8)
    ),
    "through float16": _between(lambda y: y.half().float()),
    "through int32": _between(lambda y: y.to(torch.int32).float()),
    "classes instead of logits": net(lambda s, x: s.fc(_mean(s.c(x))).argmax(1), **POOLED),
    "a loss": net(lambda s, x: s.fc(_mean(s.c(x))).mean(), **POOLED),
}

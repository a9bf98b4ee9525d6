"""Parameters that are shared, tied, computed before they are used, or frozen."""

import torch
import torch.nn.functional as F
from torch import nn

from care.case import Case, Net, buffer, conv, linear, net, parameter


def _mean(x):
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def _frozen(make, *names):
    def build():
        module = make()
        for name, each in module.named_parameters():
            if not names or name in names:
                each.requires_grad_(False)
        return module

    return build


def _near_identity():
    return nn.Parameter(torch.eye(8) + 0.1 * torch.randn(8, 8))


def _tied(first, second, run, **parts):
    """Give two layers one weight."""

    def build():
        module = Net(run, **{name: make() for name, make in parts.items()})
        getattr(module, second).weight = getattr(module, first).weight
        return module

    return Case(build)


def twice(s, x):
    return s.fc(_mean(s.d(F.relu(s.d(s.c(x))))))


def tied_transposed(s, x):
    y = _mean(s.c(x))
    return s.fc(F.relu(s.e(y)) @ s.e.weight)


def tied_by_t(s, x):
    y = F.relu(s.e(_mean(s.c(x))))
    return y @ s.fc.weight.t()


def functional_twice(s, x):
    y = _mean(s.c(x))
    return s.fc(F.relu(F.linear(F.relu(F.linear(y, s.w)), s.w)))


def scaled_weight(s, x):
    return s.fc(_mean(F.conv2d(x, s.c.weight * 2, s.c.bias, padding=1)))


def standardised(s, x):
    w = s.c.weight
    w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
    return s.fc(_mean(F.conv2d(x, w, s.c.bias, padding=1)))


def sliced_weight(s, x):
    return s.fc(_mean(F.conv2d(x, s.c.weight[:4], s.c.bias[:4], padding=1)))


def joined_weight(s, x):
    w = torch.cat([s.a, s.b], 0)
    return F.linear(_mean(s.c(x)), w)


def masked_weight(s, x):
    return F.linear(_mean(s.c(x)), s.fc.weight * s.mask, s.fc.bias)


def low_rank(s, x):
    return F.linear(_mean(s.c(x)), s.fc.weight + s.b @ s.a, s.fc.bias)


def as_matmul(s, x):
    return _mean(s.c(x)) @ s.w + s.b


def permuted_weight(s, x):
    return s.fc(_mean(F.conv2d(x, s.w.permute(1, 0, 2, 3), padding=1)))


def rearranged_weight(s, x):
    return F.linear(s.c(x).flatten(1), s.w.reshape(5, -1))


def weight_used_twice(s, x):
    y = s.c(x)
    return s.fc(_mean(y)) + s.c.weight.sum()


def scalar_times(s, x):
    return s.fc(_mean(s.c(x) * s.scale))


def layer_scale(s, x):
    y = s.c(x)
    return s.fc(_mean(y + s.gamma * F.relu(s.d(y))))


def exponential_temperature(s, x):
    return s.fc(_mean(s.c(x))) * s.t.exp()


def class_token(s, x):
    y = s.c(x).flatten(2).transpose(1, 2)
    y = torch.cat([s.token.expand(len(x), -1, -1), y], 1)
    return s.fc(s.p(y)[:, 0] + s.p(y).mean(1))


def position_added(s, x):
    y = s.c(x) + s.position
    return s.fc(_mean(F.relu(y)))


def bias_apart(s, x):
    return s.fc(_mean(F.relu(s.c(x) + s.b.view(1, -1, 1, 1))))


def buffer_added(s, x):
    return s.fc(_mean(F.relu(s.c(x) + s.b)))


def normalised_input(s, x):
    return s.fc(_mean(F.relu(s.c((x - s.mean) / 2))))


def under_no_grad(s, x):
    with torch.no_grad():
        y = F.relu(s.c(x))
    return s.fc(_mean(s.d(y)))


def detached(s, x):
    y = F.relu(s.c(x)).detach()
    return s.fc(_mean(s.d(y)))


def detached_branch(s, x):
    y = s.c(x)
    return s.fc(_mean(F.relu(s.d(y)) + y.detach()))


def straight(s, x):
    return s.fc(_mean(F.relu(s.c(x))))


def with_bn(s, x):
    return s.fc(_mean(F.relu(s.bn(s.c(x)))))


def unused(s, x):
    return s.fc(_mean(F.relu(s.c(x))))


def bad(value):
    def build():
        module = Net(straight, c=conv()(), fc=linear(8)())
        with torch.no_grad():
            module.c.weight[0, 0, 0, 0] = value
        return module

    return Case(build)


def counted(s, x):
    s.count += 1
    return s.fc(_mean(s.c(x))) * s.count


def moving(s, x):
    y = s.c(x)
    s.average.mul_(0.9).add_(y.mean((0, 2, 3)), alpha=0.1)
    return s.fc(_mean(y - s.average.view(1, -1, 1, 1)))


POOLED = {"c": conv(), "fc": linear(8)}
TWO = {"c": conv(), "d": conv(8), "fc": linear(8)}
CASES: dict[str, Case] = {
    "a convolution run twice": net(twice, **TWO),
    "batch normalisation run twice": net(
        lambda s, x: s.fc(_mean(s.bn(F.relu(s.bn(s.c(x)))))), bn=lambda: nn.BatchNorm2d(8), **POOLED
    ),
    "a linear layer run twice": net(
        lambda s, x: s.fc(s.e(F.relu(s.e(_mean(s.c(x)))))), e=linear(8, 8), **POOLED
    ),
    "one ReLU module, three times": net(
        lambda s, x: s.fc(_mean(s.r(s.d(s.r(s.c(s.r(x))))))), r=nn.ReLU, **TWO
    ),
    "two convolutions, one weight": _tied(
        "a", "b", lambda s, x: s.fc(_mean(s.b(F.relu(s.a(s.c(x)))))), a=conv(8), b=conv(8), **POOLED
    ),
    "two linear layers, one weight": _tied(
        "a",
        "b",
        lambda s, x: s.fc(s.b(F.relu(s.a(_mean(s.c(x)))))),
        a=linear(8, 8),
        b=linear(8, 8),
        **POOLED,
    ),
    "a linear layer on an image and on vectors, one weight": _tied(
        "a",
        "b",
        lambda s, x: s.fc(s.b(F.relu(s.a(s.c(x).flatten(1)).repeat_interleave(1, 1)))),
        a=linear(512, 512),
        b=linear(512, 512),
        c=conv(),
        fc=linear(512),
    ),
    "tied: a product with the transposed weight": net(tied_transposed, e=linear(8, 8), **POOLED),
    "tied: a product with weight.t()": net(
        tied_by_t, c=conv(), e=linear(8, 8), fc=linear(8, bias=False)
    ),
    "one functional weight twice": net(functional_twice, w=_near_identity, **POOLED),
    "a weight times two": net(scaled_weight, **POOLED),
    "weight standardisation": net(standardised, **POOLED),
    "a part of a weight": net(sliced_weight, c=conv(), fc=linear(4)),
    "a weight of two parts": net(joined_weight, c=conv(), a=parameter(2, 8), b=parameter(3, 8)),
    "a masked weight": net(masked_weight, mask=lambda: (torch.rand(5, 8) > 0.5).float(), **POOLED),
    "a low-rank sum": net(low_rank, a=parameter(2, 8), b=parameter(5, 2), **POOLED),
    "x @ w + b": net(as_matmul, c=conv(), w=parameter(8, 5), b=parameter(5)),
    "a permuted weight": net(permuted_weight, w=parameter(3, 8, 3, 3), fc=linear(8)),
    "a reshaped weight": net(rearranged_weight, c=conv(), w=parameter(5, 8, 64)),
    "a weight in the result, too": net(weight_used_twice, **POOLED),
    "weight_norm": net(
        straight, c=lambda: nn.utils.parametrizations.weight_norm(conv()()), fc=linear(8)
    ),
    "spectral_norm": net(
        straight, c=lambda: nn.utils.parametrizations.spectral_norm(conv()()), fc=linear(8)
    ),
    "a learned factor": net(scalar_times, scale=parameter(1), **POOLED),
    "a learned factor without axes": net(scalar_times, scale=parameter(), **POOLED),
    "layer scale": net(layer_scale, gamma=parameter(1, 8, 1, 1), **TWO),
    "exp of a learned temperature": net(exponential_temperature, t=parameter(1), **POOLED),
    "class token": net(class_token, token=parameter(1, 1, 8), p=linear(8, 8), **POOLED),
    "position embedding": net(position_added, position=parameter(1, 8, 8, 8), **POOLED),
    "a bias apart": net(bias_apart, c=conv(bias=False), b=parameter(8), fc=linear(8)),
    "a buffer added": net(buffer_added, b=buffer(1, 8, 1, 1), **POOLED),
    "the input normalised by a buffer": net(normalised_input, mean=buffer(1, 3, 1, 1), **POOLED),
    "a layer under no_grad": net(under_no_grad, **TWO),
    "a result detached": net(detached, **TWO),
    "a branch detached": net(detached_branch, **TWO),
    "a frozen convolution": net(straight, c=_frozen(conv()), fc=linear(8)),
    "a frozen bias": net(straight, c=_frozen(conv(), "bias"), fc=linear(8)),
    "a frozen batch normalisation": net(with_bn, bn=_frozen(lambda: nn.BatchNorm2d(8)), **POOLED),
    "all frozen": net(straight, c=_frozen(conv()), fc=_frozen(linear(8))),
    "all frozen but the head": net(
        lambda s, x: s.fc(_mean(F.relu(s.d(s.c(x))))),
        c=_frozen(conv()),
        d=_frozen(conv(8)),
        fc=linear(8),
    ),
    "a convolution that nothing uses": net(unused, spare=conv(), **POOLED),
    "a weight of nan": bad(float("nan")),
    "a weight of infinity": bad(float("inf")),
    "a counting buffer": net(counted, count=lambda: torch.zeros(1), **POOLED),
    "a moving average of its own": net(moving, average=buffer(8), **POOLED),
}

"""Views, operators in place, and results that share memory."""

import torch
import torch.nn.functional as F
from torch import nn

from care.case import CLASSES, IMAGE, Case, conv, linear, net

FLAT = 8 * 64
HEAD = {"c": conv(), "fc": linear(FLAT)}
POOLED = {"c": conv(), "fc": linear(8)}


def _mean(x):
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def relu_behind_a_view(s, x):
    y = s.c(x)
    v = y.view(len(y), -1)
    y.relu_()
    return s.fc(v)


def add_on_a_view(s, x):
    y = s.c(x)
    v = y.view(len(y), -1)
    v += 1.0
    return s.fc(_mean(y))


def relu_of_the_shortcut(s, x):
    y = s.c(x)
    z = F.relu(y, inplace=True)
    return s.fc(_mean(y + z))


def block_in_place(s, x):
    y = s.c(x)
    z = s.d(F.relu_(y))
    z += y
    return s.fc(_mean(F.relu_(z)))


def module_in_place(s, x):
    y = s.c(x)
    z = s.relu(y)
    return s.fc(_mean(y - 0.5 * z))


def write_a_slice(s, x):
    y = s.c(x)
    y[:, 0] = 0
    return s.fc(_mean(y))


def add_to_a_slice(s, x):
    y = s.c(x)
    y[:, :4] += 1
    return s.fc(_mean(y))


def relu_a_slice(s, x):
    y = s.c(x)
    y[:, ::2].relu_()
    return s.fc(_mean(y))


def relu_a_chunk(s, x):
    y = s.c(x)
    a, b = y.chunk(2, 1)
    a.relu_()
    return s.fc(_mean(y) + _mean(torch.cat([b, a], 1)))


def input_in_place(s, x):
    y = F.relu(x)
    x.mul_(2)
    return s.fc(_mean(s.c(y) + s.c(x)))


def copy_into(s, x):
    y, z = s.c(x), s.d(x)
    y.copy_(z)
    return s.fc(_mean(y))


def zero_and_add(s, x):
    y = s.c(x)
    z = torch.zeros_like(y)
    z.add_(y, alpha=2)
    return s.fc(_mean(z))


def masked(s, x):
    y = s.c(x)
    return s.fc(_mean(y.masked_fill_(y > 0.5, 0.5)))


def detached_view_in_place(s, x):
    y = s.c(x)
    y.detach().relu_()
    return s.fc(_mean(y))


def view_of_a_view(s, x):
    y = s.c(x)
    v = y.permute(0, 2, 3, 1)
    w = v[..., :3]
    w.mul_(0)
    return s.fc(_mean(y))


def expanded(s, x):
    y = s.c(x)
    bias = y.mean((2, 3), keepdim=True).expand_as(y)
    return s.fc(_mean(F.relu(y - bias)))


def transposed_twice(s, x):
    y = s.c(x).transpose(2, 3)
    return s.fc(s.d(y).transpose(2, 3).flatten(1))


def transposed_once(s, x):
    return s.fc(s.c(x).transpose(2, 3).flatten(1))


def reshaped_to_other_rows(s, x):
    y = s.c(x)
    return s.fc(y.reshape(len(y) * 2, -1)).reshape(len(y), -1)


def permuted_flat(s, x):
    return s.fc(s.c(x).permute(0, 2, 3, 1).flatten(1))


def flat_and_back(s, x):
    y = s.c(x)
    y = F.relu(y.flatten(1)).view(-1, 8, 8, 8)
    return s.fc(_mean(s.d(y)))


def unflattened_otherwise(s, x):
    y = s.c(x)
    return s.fc(_mean(s.d(y.flatten(1).unflatten(1, (8, 4, 16)))))


def contiguous(s, x):
    y = s.c(x).to(memory_format=torch.channels_last).contiguous()
    return s.fc(y.flatten(1))


def clamp_in_place(s, x):
    return s.fc(_mean(s.c(x).clamp_(0, 6)))


def clamp_from_zero(s, x):
    return s.fc(_mean(s.c(x).clamp(min=0)))


def maximum_with_zero(s, x):
    y = s.c(x)
    return s.fc(_mean(torch.maximum(y, torch.zeros_like(y))))


def subtract_itself(s, x):
    y = s.c(x)
    return s.fc(_mean(F.relu(y) - F.relu(-y)))


def add_itself(s, x):
    y = s.c(x)
    return s.fc(_mean(y + y))


def add_three_times(s, x):
    y = F.relu(s.c(x))
    y = y + y
    return s.fc(_mean(y + y))


def multiply_itself(s, x):
    y = s.c(x)
    return s.fc(_mean(y * y))


def add_scaled(s, x):
    y = s.c(x)
    return s.fc(_mean(torch.add(y, F.relu(y), alpha=3)))


def rsub(s, x):
    return s.fc(_mean(1 - s.c(x)))


def slice_of_channels(s, x):
    return s.fc(_mean(s.c(x))[:, 2:6])


def every_other_pixel(s, x):
    return s.fc(_mean(s.c(x)[:, :, ::2, 1::2]))


def flipped(s, x):
    return s.fc(s.c(x).flip(3).flatten(1))


def rolled(s, x):
    return s.fc(torch.roll(s.c(x), 1, 2).flatten(1))


def repeated(s, x):
    return s.fc(_mean(s.c(x)).repeat(1, 2))


def stacked(s, x):
    y = s.c(x)
    return s.fc(torch.stack([_mean(y), _mean(F.relu(y))], 1).flatten(1))


def concatenated(s, x):
    y = s.c(x)
    return s.fc(torch.cat([_mean(y), _mean(F.relu(y))], 1))


def split_and_swapped(s, x):
    a, b = _mean(s.c(x)).split([3, 5], 1)
    return s.fc(torch.cat([b, a], 1))


def pixel_shuffled(s, x):
    return s.fc(_mean(F.pixel_shuffle(s.c(x), 2)))


def squeezed(s, x):
    return s.fc(F.adaptive_avg_pool2d(s.c(x), 1).squeeze(-1).squeeze(-1))


def squeezed_of_everything(s, x):
    return s.fc(F.adaptive_avg_pool2d(s.c(x), 1).squeeze())


def indexed(s, x):
    return s.fc(F.adaptive_avg_pool2d(s.c(x), 1)[:, :, 0, 0])


def one_pixel(s, x):
    return s.fc(s.c(x)[:, :, 3, 4])


def batch_reversed(s, x):
    return s.fc(_mean(s.c(x)).flip(0))


def mixing_samples(s, x):
    y = _mean(s.c(x))
    return s.fc(y - y.mean(0, keepdim=True))


def output_is_a_view(s, x):
    return s.c(x).view(len(x), -1)[:, :CLASSES]


TWO = {"c": conv(), "d": conv(8), "fc": linear(8)}
CASES: dict[str, Case] = {
    "view, then ReLU in place on its base": net(relu_behind_a_view, **HEAD),
    "sum in place on a view, base used": net(add_on_a_view, **POOLED),
    "ReLU in place on what a sum takes again": net(relu_of_the_shortcut, **POOLED),
    "residual block in place": net(block_in_place, **TWO),
    "nn.ReLU(inplace) and its input again": net(
        module_in_place, relu=lambda: nn.ReLU(inplace=True), **POOLED
    ),
    "a slice written": net(write_a_slice, **POOLED),
    "a slice added to": net(add_to_a_slice, **POOLED),
    "ReLU in place on a strided slice": net(relu_a_slice, **POOLED),
    "ReLU in place on a chunk": net(relu_a_chunk, **POOLED),
    "the input changed in place": net(input_in_place, **POOLED),
    "copy_ over a result": net(copy_into, c=conv(), d=conv(), fc=linear(8)),
    "zeros, then add_ with alpha": net(zero_and_add, **POOLED),
    "masked_fill_": net(masked, **POOLED),
    "ReLU in place on a detached view": net(detached_view_in_place, **POOLED),
    "a view of a view in place": net(view_of_a_view, **POOLED),
    "an expanded mean taken off": net(expanded, **POOLED),
    "convolution between two transpositions": net(
        transposed_twice, c=conv(), d=conv(8), fc=linear(FLAT)
    ),
    "transposed, then flattened": net(transposed_once, **HEAD),
    "reshaped to twice the rows": net(reshaped_to_other_rows, c=conv(), fc=linear(FLAT // 2)),
    "channels last, then flattened": net(permuted_flat, **HEAD),
    "flattened, ReLU, an image again": net(flat_and_back, **TWO),
    "flattened, another image": net(unflattened_otherwise, **TWO),
    "channels-last memory format": net(contiguous, **HEAD),
    "clamp_ between 0 and 6": net(clamp_in_place, **POOLED),
    "clamp from 0": net(clamp_from_zero, **POOLED),
    "maximum with zero": net(maximum_with_zero, **POOLED),
    "difference of two ReLUs": net(subtract_itself, **POOLED),
    "a result plus itself": net(add_itself, **POOLED),
    "doubled twice": net(add_three_times, **POOLED),
    "a result times itself": net(multiply_itself, **POOLED),
    "torch.add with alpha": net(add_scaled, **POOLED),
    "one minus a result": net(rsub, **POOLED),
    "a slice of channels": net(slice_of_channels, c=conv(), fc=linear(4)),
    "every other pixel": net(every_other_pixel, **POOLED),
    "flipped": net(flipped, **HEAD),
    "rolled": net(rolled, **HEAD),
    "repeated": net(repeated, c=conv(), fc=linear(16)),
    "stacked": net(stacked, c=conv(), fc=linear(16)),
    "concatenated": net(concatenated, c=conv(), fc=linear(16)),
    "split, swapped, concatenated": net(split_and_swapped, **POOLED),
    "pixel shuffle": net(pixel_shuffled, c=conv(), fc=linear(2)),
    "squeezed axis by axis": net(squeezed, **POOLED),
    "squeezed of all axes": net(squeezed_of_everything, **POOLED),
    "squeezed of all axes, batch of one": net(squeezed_of_everything, (1, *IMAGE[1:]), **POOLED),
    "indexed by zero": net(indexed, **POOLED),
    "one pixel": net(one_pixel, **POOLED),
    "the batch reversed": net(batch_reversed, **POOLED),
    "samples mixed": net(mixing_samples, **POOLED),
    "output is a view": net(output_is_a_view, c=conv()),
}

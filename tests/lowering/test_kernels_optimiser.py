"""Optimisers on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute, same_bits, vectors_of

from fpgapipe.hw.hls_models.isa.vector_op import Constant
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.optimiser import (
    Adam,
    Sgd,
    accumulate,
    adam,
    adam_numbers,
    sgd,
)
from fpgapipe.lowering.tiling.kernel import Region, Tensor

LENGTHS = [1, 15, 16, 17, 1000, 70_001]
RATE, MOMENTUM, DECAY, SCALE, STEP_SIZE, CORRECTION, KEEP = range(2, 9)


def register(number):
    return Constant(register=number)


def run_sgd(length, settings, steps, scalars=None, region=REGION, clip=None, gradient_format=FP32):
    """Some steps, each with another gradient; gives weights, and the gradients."""
    tensors = [Tensor("w", (length,)), Tensor("g", (length,), gradient_format)]
    velocity = Tensor("v", (length,)) if settings.momentum else None
    coefficient = Tensor("c", (16,)) if clip is not None else None
    kernel = sgd("sgd", settings, *tensors, region, velocity=velocity, clip=coefficient)
    values = {"w": drawn(length), "v": np.zeros(length, np.float32)}
    if clip is not None:
        values["c"] = np.full(16, clip, np.float32)
    tensors += [tensor for tensor in (velocity, coefficient) if tensor]
    gradients = []
    for step in range(steps):
        values["g"] = drawn(length, step + 1)
        values |= execute([kernel], tensors, values, scalars)
        gradients.append(values["g"])
    return values["w"], gradients


def torch_steps(length, gradients, optimiser, **settings):
    w = torch.tensor(drawn(length), requires_grad=True)
    stepper = optimiser([w], foreach=False, **settings)
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        stepper.step()
    return w.detach().numpy()


@pytest.mark.parametrize("length", LENGTHS)
def test_sgd_with_everything(length):
    settings = Sgd(register(RATE), register(MOMENTUM), register(DECAY), scale=register(SCALE))
    scalars = {RATE: 0.1, MOMENTUM: 0.9, DECAY: 0.01, SCALE: 0.25}
    found, gradients = run_sgd(length, settings, 3, scalars)
    expected = torch_steps(
        length,
        [0.25 * gradient for gradient in gradients],
        torch.optim.SGD,
        lr=0.1,
        momentum=0.9,
        weight_decay=0.01,
    )
    assert error(found, expected) < 1e-6


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(None, False), (0.9, False), (0.9, True)], ids=str
)
@pytest.mark.parametrize("weight_decay", [None, 0.01])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_sgd_with_some(momentum, nesterov, weight_decay, clip):
    settings = Sgd(
        Constant(0.1),
        Constant(momentum) if momentum else None,
        Constant(weight_decay) if weight_decay else None,
        nesterov,
    )
    found, gradients = run_sgd(333, settings, 3, clip=clip)
    expected = torch_steps(
        333,
        [(clip or 1) * gradient for gradient in gradients],
        torch.optim.SGD,
        lr=0.1,
        momentum=momentum or 0,
        weight_decay=weight_decay or 0,
        nesterov=nesterov,
    )
    assert error(found, expected) < 1e-6


def test_plain_sgd_is_exact():
    found, gradients = run_sgd(100, Sgd(Constant(0.5)), 2)
    expected = drawn(100)
    for gradient in gradients:
        expected = expected - gradient * np.float32(0.5)
    assert same_bits(found, expected)


def test_sgd_takes_bf16_gradients():
    found, gradients = run_sgd(100, Sgd(Constant(0.1), Constant(0.9)), 2, gradient_format=BF16)
    expected = torch_steps(100, gradients, torch.optim.SGD, lr=0.1, momentum=0.9)
    assert error(found, expected) < 1e-6


def test_sgd_refuses():
    with pytest.raises(ValueError, match=r"^SGD must have a momentum if it is Nesterov's$"):
        Sgd(Constant(0.1), nesterov=True)
    with pytest.raises(
        ValueError, match=r"^SGD must have a velocity if it has a momentum, and none otherwise$"
    ):
        sgd("sgd", Sgd(Constant(0.1), Constant(0.9)), *[Tensor("w", (3,))] * 2, REGION)


def test_a_clip_has_the_scale():
    settings = Sgd(Constant(0.1), scale=register(SCALE))
    with pytest.raises(
        ValueError,
        match=r"^a clip coefficient has a scale of its own; the optimiser's must be 1$",
    ):
        sgd("sgd", settings, *[Tensor("w", (3,))] * 2, REGION, clip=Tensor("c", (16,)))


def run_adam(length, settings, numbers, region=REGION):
    tensors = [Tensor(name, (length,)) for name in ("w", "g", "m", "v")]
    kernel = adam("adam", settings, *tensors[:2], (tensors[2], tensors[3]), region)
    values = {"w": drawn(length), "m": np.zeros(length), "v": np.zeros(length)}
    gradients = []
    for step, each in enumerate(numbers, 1):
        values["g"] = drawn(length, step)
        scalars = dict(zip((STEP_SIZE, CORRECTION, KEEP), each, strict=True))
        values |= execute([kernel], tensors, values, scalars)
        gradients.append(values["g"])
    return values["w"], gradients


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(length, decoupled):
    settings = Adam(
        register(STEP_SIZE),
        register(CORRECTION),
        register(KEEP) if decoupled else Constant(1.0),
        weight_decay=None if decoupled else Constant(0.02),
    )
    numbers = [
        adam_numbers(step, 0.01, weight_decay=0.02 if decoupled else 0) for step in range(1, 5)
    ]
    found, gradients = run_adam(length, settings, numbers)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    expected = torch_steps(length, gradients, kind, lr=0.01, weight_decay=0.02)
    assert error(found, expected) < 1e-6


def test_adam_of_gradients_that_are_zero():
    """Roots of zeros give no NaN: what divides is epsilon alone."""
    tensors = [Tensor(name, (40,)) for name in ("w", "g", "m", "v")]
    kernel = adam(
        "adam",
        Adam(Constant(0.1), Constant(1.0)),
        *tensors[:2],
        (tensors[2], tensors[3]),
        REGION,
    )
    values = {name: np.zeros(40, np.float32) for name in "gmv"} | {"w": drawn(40)}
    found = execute([kernel], tensors, values)
    assert same_bits(found["w"], values["w"])
    assert same_bits(found["m"], values["m"])
    assert same_bits(found["v"], values["v"])


@pytest.mark.parametrize("length", LENGTHS)
def test_accumulation_is_exact(length):
    total, gradient = Tensor("total", (length,)), Tensor("g", (length,), BF16)
    kernel = accumulate("sum", total, gradient, REGION)
    values = {"total": drawn(length), "g": drawn(length, 1)}
    found = execute([kernel], [total, gradient], values)
    assert same_bits(found["total"], values["total"] + found["g"])


def test_bits_do_not_depend_on_the_region():
    settings = Sgd(Constant(0.1), Constant(0.9), Constant(0.01), nesterov=True)
    small = Region(1 << 16, 80 << 10)
    large = run_sgd(20_000, settings, 1)[0]
    assert same_bits(run_sgd(20_000, settings, 1, region=small)[0], large)
    numbers = [adam_numbers(1, 0.01)]
    ordinary = Adam(register(STEP_SIZE), register(CORRECTION))
    large = run_adam(20_000, ordinary, numbers)[0]
    assert same_bits(run_adam(20_000, ordinary, numbers, region=small)[0], large)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (Sgd(Constant(0.1)), 1),
        (Sgd(Constant(0.1), Constant(0.9)), 2),
        (Sgd(Constant(0.1), Constant(0.9), Constant(0.1), scale=register(SCALE)), 3),
        (Sgd(Constant(0.1), Constant(0.9), Constant(0.1), nesterov=True), 4),
        (Sgd(Constant(0.1), None, Constant(0.1)), 2),
    ],
)
def test_passes_over_the_weights(settings, steps):
    """Each instruction of a step of SGD is a pass over the weights."""
    weights, gradient, velocity = (Tensor(name, (8192,)) for name in ("w", "g", "v"))
    kernel = sgd(
        "sgd", settings, weights, gradient, REGION, velocity=velocity if settings.momentum else None
    )
    assert vectors_of([kernel], [weights, gradient, velocity]) == (512 * steps, steps)

"""Softmax with cross-entropy on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute, same_bits

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.vector_op import Constant
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.kernels.loss import (
    Counting,
    class_numbers,
    class_numbers_content,
    cross_entropy,
)
from fpgapipe.lowering.tiling.kernel import Region, Tensor
from fpgapipe.network.losses import total_of, weights_of


def run(
    logits,
    labels,
    region=REGION,
    element_format=FP32,
    gradient_format=FP32,
    scale=None,
    smoothing=0.0,
    counted=None,
    microbatches=1,
    weights=None,
):
    batch, classes = logits.shape
    tensors = [
        Tensor("logits", logits.shape, element_format),
        Tensor("labels", (batch,)),
        Tensor("loss", (1,)),
        Tensor("gradient", logits.shape, gradient_format),
        Tensor("correct", (1,)),
        class_numbers(classes),
        *([Tensor("weights", (batch,))] if weights is not None else []),
    ]
    counting = counted and Counting(
        Constant(register=4), Constant(register=5), microbatches=microbatches
    )
    kernel = cross_entropy(
        "loss",
        *tensors[:3],
        region,
        gradient=tensors[3],
        correct=tensors[4],
        scale=scale,
        smoothing=smoothing,
        counting=counting,
        weights=None if weights is None else tensors[6],
    )
    values = {"logits": logits, "labels": labels}
    values |= {} if weights is None else {"weights": weights}
    values[tensors[5].name] = class_numbers_content(classes)
    scalars = {4: float(counted), 5: -1 / counted} if counted else None
    found = execute([kernel], tensors, values, scalars)
    return float(found["loss"][0]), found["gradient"], int(found["correct"][0]), found["logits"]


def reference(logits, labels, dtype=torch.float64):
    x = torch.tensor(logits, dtype=dtype, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(x, torch.tensor(labels).long())
    loss.backward()
    return loss.item(), x.grad.numpy()


def random_labels(batch, classes, seed=5):
    return np.random.default_rng(seed).integers(0, classes, batch).astype(np.float32)


@pytest.mark.parametrize(
    ("batch", "classes"),
    [
        (1, 1),
        (1, 2),
        (3, 10),
        (128, 10),
        (70, 16),
        (65, 17),
        (5, 33),
        (37, 100),
        (70, 1000),
        (9, 1025),
        (30, 1300),
    ],
)
def test_loss_and_gradient(batch, classes):
    logits, labels = drawn((batch, classes), scale=3), random_labels(batch, classes)
    loss, gradient, correct, _ = run(logits, labels)
    expected, expected_gradient = reference(logits, labels)
    assert abs(loss - expected) <= 1e-6 * max(abs(expected), 1)
    assert error(gradient, expected_gradient) < 1e-6
    assert correct == (logits.argmax(axis=1) == labels).sum()


def test_most_classes():
    """A row takes more than a piece has otherwise."""
    logits, labels = drawn((2, 65_535)), np.float32([65_534, 7])
    loss, gradient, _, _ = run(logits, labels, Region(0, 2 << 20))
    expected, expected_gradient = reference(logits, labels)
    assert abs(loss - expected) < 1e-6 * expected
    assert error(gradient, expected_gradient) < 1e-6


@pytest.mark.parametrize("gradient_format", [BF16, FP32])
def test_bf16(gradient_format):
    logits, labels = drawn((37, 45), scale=3), random_labels(37, 45)
    loss, gradient, _, rounded = run(
        logits, labels, element_format=BF16, gradient_format=gradient_format
    )
    expected, expected_gradient = reference(rounded, labels)
    assert abs(loss - expected) < 1e-6 * expected
    assert error(gradient, expected_gradient) < (1e-6 if gradient_format is FP32 else 2**-8)


def test_scale():
    logits, labels = drawn((9, 20)), random_labels(9, 20)
    _, gradient, _, _ = run(logits, labels, scale=3.0)
    assert error(gradient, reference(logits, labels)[1] * 27) < 1e-6


def test_huge_logits():
    logits = drawn((40, 50), scale=1e4)
    labels = random_labels(40, 50)
    logits[0], logits[1], logits[2] = 3e38, -3e38, 0
    logits[2, 3], labels[2] = 3.4e38, 3
    loss, gradient, _, _ = run(logits, labels)
    expected, expected_gradient = reference(logits, labels, torch.float32)
    assert abs(loss - expected) < 1e-6 * expected
    assert error(gradient, expected_gradient) < 1e-6


@pytest.mark.parametrize("classes", [7, 40])
def test_infinities_and_nan(classes):
    logits = drawn((6, classes))
    labels = random_labels(6, classes)
    logits[0, :-1] = -np.inf
    labels[0] = classes - 1
    loss, gradient, _, _ = run(logits, labels)
    expected, expected_gradient = reference(logits, labels)
    assert abs(loss - expected) < 1e-6 * expected
    assert error(gradient, expected_gradient) < 1e-6
    # Each of the others makes the loss no number, and only the row's gradient NaN.
    for row, value in ((1, np.inf), (2, np.nan), (3, -np.inf)):
        wrong = logits.copy()
        if value == -np.inf:
            wrong[row] = value
        else:
            wrong[row, 0] = value
        loss, gradient, _, _ = run(wrong, labels)
        expected, expected_gradient = reference(wrong, labels)
        assert np.isnan(loss) == np.isnan(expected)
        assert np.isnan(loss)
        np.testing.assert_array_equal(np.isnan(gradient), np.isnan(expected_gradient))
    # A label of probability 0.
    labels[0] = 0
    assert run(logits, labels)[0] == reference(logits, labels)[0] == np.inf
    assert error(run(logits, labels)[1], reference(logits, labels)[1]) < 1e-6


def test_numbers_of_classes_are_read_once_for_several_rows():
    """Seven operations on each logit, one of them in a quarter of the lanes, take 10 cycles."""
    batch, classes, lanes = 64, 8192, 16
    core = CoreSpec(32, 32, scratchpad=ScratchpadSpec(4, 1 << 21), vector=VectorSpec(lanes=lanes))
    region = Region(0, core.scratchpad.size_bytes, core.scratchpad.bank_bytes)
    logits, gradient = (Tensor(name, (batch, classes), BF16) for name in ("logits", "gradient"))
    kernel = cross_entropy(
        "loss", logits, Tensor("labels", (batch,)), Tensor("loss", (1,)), region, gradient=gradient
    )
    tensors = sorted(kernel.reads | kernel.writes)
    program = kernel.instructions({name: at << 22 for at, name in enumerate(tensors)})
    found = predict(program, core, MemorySpec())
    cycles = sum(
        end - start
        for each, start, end in zip(program, found.starts, found.ends, strict=False)
        if each.opcode is Opcode.VECTOR
    )
    assert cycles < 1.2 * 10 * batch * classes / lanes


@pytest.mark.parametrize(("batch", "classes"), [(300, 33), (20, 1500)])
def test_bits_do_not_depend_on_the_region(batch, classes):
    logits, labels = drawn((batch, classes), scale=3), random_labels(batch, classes)
    found = [run(logits, labels, Region(1 << 16, size)) for size in (1 << 20, 1 << 16, 40 << 10)]
    for loss, gradient, correct, _ in found[1:]:
        assert loss == found[0][0]
        assert same_bits(gradient, found[0][1])
        assert correct == found[0][2]


def test_a_loss_alone():
    logits, labels = drawn((20, 33)), random_labels(20, 33)
    tensors = [Tensor("logits", (20, 33)), Tensor("labels", (20,)), Tensor("loss", (1,))]
    table = class_numbers(33)
    values = {"logits": logits, "labels": labels, table.name: class_numbers_content(33)}
    kernel = cross_entropy("loss", *tensors, REGION)
    loss = execute([kernel], [*tensors, table], values)["loss"][0]
    assert loss == np.float32(run(logits, labels)[0])


def test_a_tie_counts_as_correct():
    logits = np.zeros((3, 20), np.float32)
    assert run(logits, np.float32([0, 7, 19]))[2] == 3


def test_refuses():
    tensors = Tensor("x", (2, 70_000)), Tensor("labels", (2,)), Tensor("loss", (1,))
    with pytest.raises(
        ValueError, match=r"^cross-entropy must have 1\.\.65536 classes, not 70000$"
    ):
        cross_entropy("loss", *tensors, REGION)
    with pytest.raises(ValueError, match=r"^cross-entropy tensor labels must be FP32, not BF16$"):
        cross_entropy(
            "loss", Tensor("x", (2, 7)), Tensor("labels", (2,), BF16), Tensor("l", (1,)), REGION
        )


@pytest.mark.parametrize(("batch", "classes"), [(1, 3), (37, 10), (70, 17), (9, 1025)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignores", [False, True])
def test_smoothed_and_ignored_labels(batch, classes, smoothing, ignores):
    logits, labels = drawn((batch, classes), scale=3), random_labels(batch, classes)
    if ignores and batch > 1:
        labels[::3] = -100
        labels[1] = -1
    counted = int((labels >= 0).sum())
    # The batch is a third of the mini-batch, of which the other labels count, too.
    whole = counted + 5
    loss, gradient, correct, _ = run(
        logits,
        labels,
        smoothing=smoothing,
        counted=whole if ignores else None,
        microbatches=3,
    )
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        x,
        torch.tensor(np.where(labels < 0, -100, labels)).long(),
        label_smoothing=smoothing,
        reduction="sum",
    ) / (whole if ignores else batch)
    expected.backward()
    expected = expected.item() * (3 if ignores else 1)
    assert abs(loss - expected) <= 2e-6 * max(abs(expected), 1)
    assert error(gradient, x.grad.numpy()) < 1e-6
    assert correct == (logits.argmax(axis=1) == labels).sum()
    ignored = labels < 0
    assert not gradient[ignored].any()


def test_all_labels_count_as_if_none_could_be_ignored():
    logits, labels = drawn((37, 10), scale=3), random_labels(37, 10)
    _, gradient, correct, _ = run(logits, labels, scale=1 / 64)
    _, again, also, _ = run(logits, labels, counted=64)
    assert same_bits(again, gradient)
    assert also == correct


@pytest.mark.parametrize("gradient_format", [BF16, FP32])
def test_weights_of_rows_are_not_rounded(gradient_format):
    logits, labels = drawn((37, 45), scale=3), random_labels(37, 45)
    labels[5] = -1
    _, gradient, _, _ = run(
        logits, labels, gradient_format=gradient_format, smoothing=0.2, counted=36
    )
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(
        x, torch.tensor(labels).long(), label_smoothing=0.2, ignore_index=-1
    ).backward()
    assert error(gradient, x.grad.numpy()) < (1e-6 if gradient_format is FP32 else 2**-8)


def test_many_pieces_change_no_bit_of_a_smoothed_loss():
    logits, labels = drawn((70, 33), scale=3), random_labels(70, 33)
    labels[::7] = -100
    settings = {"smoothing": 0.1, "counted": 60}
    small = run(logits, labels, region=Region(0, 24 << 10), **settings)
    large = run(logits, labels, **settings)
    assert small[0] == large[0]
    assert same_bits(small[1], large[1])


@pytest.mark.parametrize(("batch", "classes"), [(1, 3), (37, 10), (70, 17), (9, 1025), (300, 2)])
@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize("gradient_format", [BF16, FP32])
def test_weights_of_classes(batch, classes, ignores, gradient_format):
    """PyTorch's own ``weight``, on half of the labels of a mini-batch of two micro-batches."""
    rng = np.random.default_rng(batch)
    class_weights = tuple(np.exp(rng.normal(0, 2, classes)).tolist())
    logits = drawn((batch, classes), 3)
    labels = random_labels(batch, classes).astype(np.int64)
    if ignores:
        labels[1::3] = -100
    others = rng.integers(0, classes, batch)
    total = total_of(np.concatenate([labels, others]), class_weights)
    value, gradient, correct, _ = run(
        logits,
        labels,
        counted=total,
        microbatches=2,
        gradient_format=gradient_format,
        weights=weights_of(labels, class_weights),
    )
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor(np.float32(class_weights), dtype=torch.float64)
    whole = torch.cat([x, torch.zeros((batch, classes), dtype=torch.float64)])
    given = torch.tensor(np.concatenate([labels, others]))
    functions = torch.nn.functional
    mean = functions.cross_entropy(whole, given, weight=weight)
    own = functions.cross_entropy(x, given[:batch], weight=weight, reduction="sum") / total
    mean.backward()
    assert value / 2 == pytest.approx(float(own.detach()), rel=1e-5, abs=1e-7)
    expected = x.grad.numpy()
    bound = 2e-6 if gradient_format is FP32 else 4e-3
    assert np.linalg.norm(gradient - expected) < bound * np.linalg.norm(expected)
    assert not gradient[labels < 0].any()
    best = logits.max(axis=1) == logits[np.arange(batch), np.maximum(labels, 0)]
    assert correct == (best & (labels >= 0)).sum()


def test_equal_weights_leave_the_loss():
    """Weights of 1 change nothing but the order in which a gradient's factors are multiplied."""
    logits, labels, ones = drawn((37, 10), 3), random_labels(37, 10), np.ones(37, np.float32)
    value, gradient, _, _ = run(logits, labels, counted=37)
    weighted, own, _, _ = run(logits, labels, counted=37, weights=ones)
    assert weighted == value
    np.testing.assert_allclose(own, gradient, rtol=1e-5, atol=1e-8)

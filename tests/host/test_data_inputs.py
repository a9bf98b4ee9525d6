"""Samples of networks with several inputs: files, random ones, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.sample_checks import digest_of
from fpgapipe.host.data.samples import Samples, Wanted, WantedInput
from fpgapipe.host.runtime.training import check_samples
from fpgapipe.network.operators import Compare, MaskedFill
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.zoo import built_in
from fpgapipe.network.zoo.layers import Network


def pair(batch=2):
    """A class for each of 5 target tokens, from 7 source tokens, and an image besides."""
    net = Network("pair", batch)
    source = net.embedding(net.tokens("source", 7), 11, 4)
    target = net.embedding(net.tokens("target", 5), 9, 4)
    image = net.reshape(net.flatten(net.input("image", Tensor((batch, 3, 2, 2)))), batch, 1, 12)
    x = net.reshape(net.linear(net.flatten(source), 4), batch, 1, 4)
    x = net.plus(net.plus(x, target), net.linear(image, 4))
    net.linear(x, 6, name="logits")
    return net.build()


def arrays(count=10):
    rng = np.random.default_rng(0)
    return {
        "source": rng.integers(0, 11, (count, 7)),
        "target": rng.integers(0, 9, (count, 5)),
        "image": rng.standard_normal((count, 3, 2, 2)).astype(np.float32),
        "labels": rng.integers(0, 6, (count, 5)),
    }


def refused(path, **changed):
    found = {**arrays(), **changed}
    np.savez(path, **{name: each for name, each in found.items() if each is not None})
    with pytest.raises(FileError) as caught:
        load_data(str(path), pair())
    (fault,) = caught.value.faults
    return fault


def test_what_networks_take():
    wanted = Wanted.of(pair())
    assert wanted.several == wanted.inputs == (
        WantedInput("source", (7,), 11), WantedInput("target", (5,), 9),
        WantedInput("image", (3, 2, 2)),
    )  # fmt: skip
    assert (wanted.classes, wanted.label_shape) == (6, (5,))
    assert Wanted.of(built_in("char-gpt", 2)).inputs == (WantedInput("tokens", (128,), 128),)
    assert [each.name for each in Wanted.of(built_in("gnmt8")).several] == ["source", "target"]


def test_an_array_for_each_input(tmp_path):
    path = tmp_path / "a.npz"
    given = arrays()
    np.savez(path, **given)
    found = load_data(str(path), pair())
    order = np.random.default_rng(0).permutation(10)
    own = found.validation.inputs(pair())
    assert list(own) == ["source", "target", "image"]
    for name, each in own.items():
        np.testing.assert_array_equal(each, given[name][np.sort(order[:2])])
    others = {f"validation_{name}": each[:3] for name, each in given.items()}
    others["validation_image"] = np.moveaxis(others["validation_image"], 1, -1)
    np.savez(path, **given, **others)
    found = load_data(str(path), pair())
    assert (len(found.train.labels), len(found.validation.labels)) == (10, 3)
    np.testing.assert_array_equal(found.validation.others[1], given["image"][:3])


def test_batches_keep_rows_together():
    given = arrays()
    samples = Samples(given["source"], given["labels"], (given["target"], given["image"]))
    for batch in samples.batches(3, seed=1):
        for row, source in enumerate(batch.images):
            (at,) = np.flatnonzero((given["source"] == source).all(1))
            for other, name in zip(batch.others, ("target", "image"), strict=True):
                np.testing.assert_array_equal(other[row], given[name][at])


def test_files_that_do_not_fit(tmp_path):
    path = tmp_path / "a.npz"
    wants = "must have arrays source, target, image and labels for pair"
    assert refused(path, target=None) == (
        f"{wants}, and has no target; it has image, labels, source"
    )
    assert refused(path, target=None, image=None).startswith(f"{wants}, and has no target and imag")
    assert refused(path, targets=np.zeros(3)) == (
        "has array targets, which is no input of pair; its arrays are source, target, image and "
        "labels"
    )
    assert refused(path, target=np.zeros((10, 6), int)) == (
        "array target must have tokens of 5 for pair, that is shape (10, 5), not (10, 6); resize "
        "them, or take a network for them"
    )
    assert refused(path, target=np.full((10, 5), 9)) == (
        "array target must be in 0..8, the tokens of pair, but sample 0 has 9"
    )
    assert refused(path, image=np.zeros((9, 3, 2, 2))).startswith(
        "array labels must have as many rows as image has samples"
    )
    assert refused(path, validation_source=np.zeros((2, 7), int)).startswith(
        "has validation_source only; it must have all of validation_image, "
    )
    for name in ("digits", "a.txt", str(tmp_path)):
        with pytest.raises(UserError, match=r"^pair has 3 inputs \(source, target, image\): its d"):
            load_data(name, pair())


def test_random_samples_can_be_learned():
    for graph in (pair(), built_in("gnmt8")):
        found = load_data("random", graph).train
        check_samples(found, graph)
    samples = load_data("random", built_in("gnmt8")).train
    classes = {}
    for token, label in zip(samples.images.flat, samples.labels.flat, strict=True):
        assert classes.setdefault(token, label) == label


def test_samples_that_do_not_fit():
    given = arrays()
    source, target, image, labels = given.values()
    graph = pair()
    check_samples(Samples(source, labels, (target, image)), graph)
    with pytest.raises(UserError, match=r"^pair takes 3 inputs, not 2"):
        check_samples(Samples(source, labels, (target,)), graph)
    with pytest.raises(UserError, match=r"^pair takes samples of 5 as target, not 7"):
        check_samples(Samples(source, labels, (source, image)), graph)
    with pytest.raises(UserError, match=r"^pair takes as many samples of each input, not 10 and 9"):
        check_samples(Samples(source, labels, (target[1:], image)), graph)
    with pytest.raises(UserError, match=r"^tokens must be whole numbers in 0\.\.8, those of pair"):
        check_samples(Samples(source, labels, (target + 5, image)), graph)


def padded(batch=2):
    """A class for each of 6 tokens, some of which a mask hides, and a row of lengths."""
    net = Network("padded", batch)
    x = net.embedding(net.tokens("tokens", 6), 11, 4)
    mask = net.input("mask", Tensor((batch, 6), DType.BOOL))
    counts = net.input("counts", Tensor((batch, 2), DType.INT64))
    hidden = net.reshape(net.add("hidden", Compare("ne", 0.0), mask), batch, 6, 1)
    x = net.add("filled", MaskedFill(0.0, keeps=False), x, hidden)
    long = net.linear(net.add("long", Compare("gt", 3.0), counts), 4)
    net.linear(net.plus(net.reshape(long, batch, 1, 4), x), 6, name="logits")
    return net.build()


def test_masks(tmp_path):
    graph, path = padded(), tmp_path / "a.npz"
    masks = {each.name: each.mask for each in Wanted.of(graph).inputs}
    assert [each and each.text for each in masks.values()] == [
        None, "0 or 1 (1 hides)", "whole numbers in -16,777,216..16,777,216"
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    given = {
        "tokens": rng.integers(0, 11, (10, 6)),
        "mask": rng.random((10, 6)) < 0.3,
        "counts": rng.integers(-9, 9, (10, 2)),
        "labels": rng.integers(0, 6, (10, 6)),
    }
    np.savez(path, **given)
    found = load_data(str(path), graph)
    check_samples(found.train, graph)
    np.testing.assert_array_equal(
        np.unique(found.train.inputs(graph)["mask"]), np.unique(given["mask"])
    )
    for name, wrong, reason in (
        ("mask", given["mask"] + 1, "array mask must be 0 or 1 (1 hides), but sample 0 has 2 in"),
        ("mask", given["mask"] * 1.0, "array mask must hold a mask, 0 or 1 (1 hides), not float64"),
        ("mask", given["mask"][:, :5], "array mask must have masks of 6 for padded, that is shape"),
        (
            "counts",
            given["counts"] + (1 << 24),
            "array counts must be whole numbers in -16,777,216",
        ),
    ):
        np.savez(path, **{**given, name: wrong})
        with pytest.raises(FileError) as caught:
            load_data(str(path), graph)
        assert caught.value.faults[0].startswith(reason), caught.value.faults


def test_random_masks_keep_the_first_positions():
    found = load_data("random", padded())
    check_samples(found.train, padded())
    mask = found.train.inputs(padded())["mask"]
    assert set(np.unique(mask)) == {0, 1}
    assert (np.diff(mask, axis=1) >= 0).all()
    assert (mask[:, :3] == 0).all()
    with pytest.raises(UserError, match=r"^input mask of padded must be 0 or 1 \(1 hides\), not 2"):
        check_samples(
            Samples(found.train.images, found.train.labels, (mask * 2, found.train.others[1])),
            padded(),
        )


def test_the_digest_has_all_that_a_step_takes():
    """A run is not resumed with samples of which only a mask or a target differs."""
    one = Samples(np.zeros((4, 3)), np.zeros(4, np.int64), (np.ones((4, 3)),))
    assert digest_of(one) == digest_of(replace(one))
    changes = ({"images": one.images + 1}, {"labels": one.labels + 1}, {"others": (one.images,)})
    assert len({digest_of(replace(one, **each)) for each in ({}, *changes)}) == 4

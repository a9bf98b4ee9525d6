"""Samples of tokens and of pixels: texts, rows of numbers, random ones, and what is refused."""

import numpy as np
import pytest

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.sample_checks import check_samples
from fpgapipe.host.data.samples import Samples, Wanted
from fpgapipe.network.zoo import built_in
from fpgapipe.network.zoo.layers import Network

TEXT = "".join(chr(33 + i * i % 90) for i in range(331))


def language(rows=128, classes=None):
    net = Network("language", 2)
    net.linear(net.embedding(net.tokens("tokens", 10), rows, 4), classes or rows)
    return net.build()


def sentences():
    net = Network("sentences", 2)
    net.linear(net.flatten(net.embedding(net.tokens("tokens", 10), 16, 4)), 3)
    return net.build()


def pixels():
    net = Network("pixels", 2)
    net.conv(net.image(3, 4, 6), 5, 1)
    return net.build()


def refused(path, graph=None):
    with pytest.raises(FileError) as caught:
        load_data(str(path), graph or language())
    (fault,) = caught.value.faults
    return fault


def test_what_networks_take():
    wanted = Wanted.of(built_in("char-gpt", 2))
    assert wanted == Wanted("char-gpt", (128,), 128, (128,), 128)
    assert wanted.predicts_tokens
    assert not Wanted.of(language(classes=5)).predicts_tokens
    assert not Wanted.of(sentences()).predicts_tokens
    assert Wanted.of(pixels()) == Wanted("pixels", (3, 4, 6), 5, (4, 6))


def test_a_text(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    found = load_data(str(tmp_path / "a.txt"), language())
    assert found.note == "the last 7 of 33 samples are for validation"
    assert found.train.images.shape == found.train.labels.shape == (26, 10)
    together = np.concatenate([found.train.images, found.validation.images]).reshape(-1)
    assert "".join(map(chr, together)) == TEXT[:330]
    behind = np.concatenate([found.train.labels, found.validation.labels]).reshape(-1)
    assert "".join(map(chr, behind)) == TEXT[1:]


def test_texts_that_do_not_fit(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT[:20])
    assert refused(path) == (
        "must have at least 21 characters, for two samples of 10 and the token behind, not 20"
    )
    path.write_text(f"{TEXT}\nna\u00efve")
    assert refused(path) == (
        "line 2: a character's number in Unicode is its token, which must be in 0..127 for "
        "language, but '\u00ef' is 239; replace it, or take a network with a larger table"
    )
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(path)
    path.write_text(TEXT)
    for graph in (sentences(), pixels(), language(classes=5)):
        assert refused(path, graph).startswith("a row of tokens is for a network that predicts ")


def test_a_row_of_numbers(tmp_path):
    path = tmp_path / "a.npz"
    tokens = np.arange(331, dtype=np.uint16) % 100
    np.savez(path, tokens=tokens)
    found = load_data(str(path), language())
    assert found.train.images.dtype == np.int64
    np.testing.assert_array_equal(found.train.labels, (found.train.images + 1) % 100)
    np.savez(path, tokens=tokens.reshape(1, -1))
    assert refused(path) == (
        "array tokens must be a row of whole numbers if there are no labels, not uint16 of shape "
        "(1, 331)"
    )
    np.savez(path, tokens=tokens + 29)
    assert refused(path) == (
        "array tokens must be in 0..127, the tokens of language, but token 99 has 128"
    )
    assert refused(path, sentences()).startswith("must have arrays tokens and labels; it has ")


def test_pairs_of_tokens_and_labels(tmp_path):
    path = tmp_path / "a.npz"
    tokens, labels = np.arange(60).reshape(6, 10) % 16, np.arange(6) % 3
    np.savez(path, tokens=tokens, labels=labels, validation_tokens=tokens[:2],
             validation_labels=labels[:2])  # fmt: skip
    found = load_data(str(path), sentences())
    np.testing.assert_array_equal(found.train.images, tokens)
    np.testing.assert_array_equal(found.validation.labels, labels[:2])
    for wrong, message in (
        ({"tokens": tokens.astype(np.float32)}, "array tokens must hold whole numbers, not "
                                                "float32"),
        ({"tokens": tokens + 1}, "array tokens must be in 0..15, the tokens of sentences, but "
                                 "sample 1 has 16"),
        ({"tokens": tokens[:, 1:]}, "array tokens must have tokens of 10 for sentences, that is "
                                    "shape (6, 10), not (6, 9); resize them, or take a network "
                                    "for them"),
        ({"labels": labels + 1}, "array labels must be in 0..2, the classes of sentences, but "
                                 "sample 2 has 3"),
    ):  # fmt: skip
        np.savez(path, **{"tokens": tokens, "labels": labels, **wrong})
        assert refused(path, sentences()) == message


def test_labels_of_pixels(tmp_path):
    path = tmp_path / "a.npz"
    images = np.random.default_rng(0).random((6, 3, 4, 6))
    labels = np.arange(6 * 24).reshape(6, 4, 6) % 5
    np.savez(path, images=images, labels=labels)
    found = load_data(str(path), pixels())
    assert found.train.labels.shape == (5, 4, 6)
    np.savez(path, images=images, labels=labels[:, 0, 0])
    assert refused(path, pixels()) == (
        "array labels must hold 4x6 whole numbers a sample, classes, not int64 of shape (6,)"
    )
    with pytest.raises(UserError, match=r"and labels of 4x6 in 5 classes; use other data"):
        load_data("digits", pixels())
    (tmp_path / "folder/cat").mkdir(parents=True)
    assert refused(tmp_path / "folder", pixels()) == (
        "images in folders have one label each, but pixels takes 4x6; use a .npz file"
    )


def test_random_tokens_have_successors():
    samples = load_data("random", language()).train
    behind = {}
    for token, label in zip(samples.images.flat, samples.labels.flat, strict=True):
        assert behind.setdefault(token, label) == label
    assert len(set(behind.values())) == 128


def test_random_sentences_resemble_others_of_their_class():
    samples = load_data("random", sentences()).train
    assert samples.images.max() == 15
    for number in range(3):
        own = samples.images[samples.labels == number]
        most = [np.bincount(column).max() / len(own) for column in own.T]
        assert min(most) > 0.4


def test_random_pixels_have_colours():
    samples = load_data("random", pixels()).train
    colours = np.moveaxis(samples.images, 1, -1)
    means = np.stack([colours[samples.labels == number].mean(0) for number in range(5)])
    distances = ((colours[:, :, :, None] - means) ** 2).sum(-1)
    assert (distances.argmin(-1) == samples.labels).mean() > 0.8


def test_samples_are_checked():
    graph = language()
    good = np.zeros((4, 10), np.int64)
    check_samples(Samples(good, good), graph)
    with pytest.raises(UserError, match=r"^tokens must be whole numbers in 0\.\.127, .* not 128$"):
        check_samples(Samples(good + 128, good), graph)
    with pytest.raises(UserError, match=r"^tokens must be whole numbers .* not float32$"):
        check_samples(Samples(good.astype(np.float32), good), graph)
    with pytest.raises(UserError, match=r"^4 samples need labels of shape \(4, 10\), not \(4,\)$"):
        check_samples(Samples(good, good[:, 0]), graph)

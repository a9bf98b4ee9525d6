"""Samples from every source fit the network, or are refused by the name of what does not."""

import io
import re
import warnings
import zipfile

import numpy as np
import pytest
from odd_files import ODD

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.samples import Samples
from fpgapipe.network.zoo import built_in
from fpgapipe.network.zoo.layers import Network


def network(*shape, classes=4):
    net = Network("tiny", 1)
    net.linear(net.flatten(net.image(*shape)), classes)
    return net.build()


GREY, COLOUR = network(1, 4, 6), network(3, 4, 6)


def arrays(shape=(10, 3, 4, 6), dtype=np.float32, classes=4):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, shape).astype(dtype)
    return {"images": images, "labels": np.arange(shape[0]) % classes}


def saved(path, **content):
    np.savez_compressed(path, **content)
    return path


def refused(path, graph=COLOUR):
    with pytest.raises(FileError) as caught:
        load_data(str(path), graph)
    (fault,) = caught.value.faults
    assert caught.value.path == path
    return fault


def all_images(dataset):
    """Of training and validation, sorted, so that a split does not matter."""
    together = np.concatenate([dataset.train.images, dataset.validation.images])
    return together[np.lexsort(together.reshape(len(together), -1).T)]


def test_order_depends_on_seed_and_epoch_only():
    samples = Samples(np.arange(10, dtype=np.float32).reshape(10, 1), np.arange(10))

    def order(*args):
        return [batch.labels.tolist() for batch in samples.batches(*args)]

    assert order(4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert order(4, 3, 1) == order(4, 3, 1)
    assert order(4, 3, 0) == order(4, 3)
    orders = [order(4, seed, epoch) for seed in (1, 3) for epoch in (0, 1)]
    assert len({str(each) for each in orders}) == 4
    for batch in samples.batches(4, 3):
        np.testing.assert_array_equal(batch.images[:, 0], batch.labels)


def test_digits():
    pytest.importorskip("sklearn", reason="needs the data extra")
    found = load_data("digits", built_in("digits-cnn"))
    assert found.train.images.shape == (1437, 1, 8, 8)
    assert found.validation.images.shape == (360, 1, 8, 8)
    assert found.train.images.dtype == np.float32
    assert found.train.images.max() == 1
    assert found.train.labels[:5].tolist() == [6, 6, 6, 2, 5]
    assert not found.note
    with pytest.raises(
        UserError,
        match=r"^the digits set has images of 1x8x8 and 10 classes, but tiny takes images of "
        r"3x4x6 and 4 classes; use other data \(random fits every network\)$",
    ):
        load_data("digits", COLOUR)


def test_digits_need_an_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^the digits set needs sklearn: pip install 'fpgapipe\["):
        load_data("digits", built_in("digits-cnn"))


def test_random_samples_can_be_learned():
    found = load_data("random", COLOUR)
    again = load_data("random", COLOUR)
    np.testing.assert_array_equal(found.train.images, again.train.images)
    assert found.train.images.shape == (1024, 3, 4, 6)
    assert found.validation.images.shape == (256, 3, 4, 6)
    means = np.stack([found.train.images[found.train.labels == k].mean(0) for k in range(4)])
    distances = ((found.validation.images[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert (distances.argmin(1) == found.validation.labels).mean() > 0.99


@pytest.mark.parametrize(
    ("graph", "shape", "move"),
    [
        (COLOUR, (10, 3, 4, 6), lambda x: x),
        (COLOUR, (10, 4, 6, 3), lambda x: np.moveaxis(x, -1, 1)),
        (GREY, (10, 1, 4, 6), lambda x: x),
        (GREY, (10, 4, 6), lambda x: x[:, None]),
        (GREY, (10, 4, 6, 1), lambda x: np.moveaxis(x, -1, 1)),
        (network(3, 3, 3), (10, 3, 3, 3), lambda x: x),  # channels first, where both would fit
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_npz(graph, shape, move, dtype, tmp_path):
    content = arrays(shape, dtype)
    path = saved(
        tmp_path / "a.npz",
        **content,
        **{f"validation_{name}": value[:3] for name, value in content.items()},
    )
    found = load_data(str(path), graph)
    expected = move(content["images"]).astype(np.float32)
    expected = expected / np.float32(255) if dtype == np.uint8 else expected
    np.testing.assert_array_equal(found.train.images, expected)
    np.testing.assert_array_equal(found.train.labels, content["labels"])
    np.testing.assert_array_equal(found.validation.images, expected[:3])
    assert found.train.images.dtype == np.float32
    assert found.train.labels.dtype == np.int64
    assert found.train.images.flags.c_contiguous
    assert not found.note


def test_a_fifth_is_for_validation_where_none_is_given(tmp_path):
    content = arrays((10, 3, 4, 6))
    path = saved(tmp_path / "a.npz", **content)
    found = load_data(str(path), COLOUR)
    assert (len(found.train.labels), len(found.validation.labels)) == (8, 2)
    assert found.note == "2 of 10 samples, drawn with a fixed seed, are for validation"
    whole = content["images"]
    np.testing.assert_array_equal(all_images(found), whole[np.lexsort(whole.reshape(10, -1).T)])
    again = load_data(str(path), COLOUR)
    np.testing.assert_array_equal(found.validation.images, again.validation.images)


def changed(**content):
    return {**arrays(), **content}


NOT_FINITE = arrays()["images"].copy()
NOT_FINITE[7, 1, 2, 3] = np.nan
WRONG_FILES = {
    "no labels": ({"images": np.zeros((2, 3, 4, 6))}, r"must have arrays images and labels; it has "
                  r"images"),
    "half a validation": (changed(validation_images=np.zeros((2, 3, 4, 6))),
                          r"has validation_images only; it must have both of validation_images, "
                          r"validation_labels"),
    "text": (changed(images=np.full((10, 3, 4, 6), "x")), r"array images must hold floating-point "
             r"numbers, or whole ones of 8 bits \(divided by 255\), not <U1; save it with "
             r"astype\('float32'\)"),
    "wide integers": (changed(images=np.zeros((10, 3, 4, 6), np.int32)), r"array images must hold "
                      r"floating-point numbers, .*, not int32; .*"),
    "complex": (changed(images=np.zeros((10, 3, 4, 6), complex)), r"array images must hold .*, not "
                r"complex128; .*"),
    "pickles": (changed(labels=np.array([{}] * 10)), r"array labels holds Python objects "
                r"\(pickles\), which are never read; save numbers"),
    "one-hot": (changed(labels=np.eye(10, dtype=int)), r"array labels must hold one whole number a "
                r"sample, its class, not int64 of shape \(10, 10\)"),
    "real labels": (changed(labels=np.zeros(10)), r"array labels must hold one whole number a "
                    r"sample, its class, not float64 of shape \(10,\)"),
    "fewer labels": (changed(labels=np.zeros(9, int)), r"array labels must have as many rows as "
                     r"images has samples, at least one: 10 samples, 9 rows of labels"),
    "nothing": ({"images": np.zeros((0, 3, 4, 6)), "labels": np.zeros(0, int)}, r"array labels "
                r"must have as many rows as images has samples, at least one: 0 samples, 0 "
                r"rows of labels"),
    "one sample": ({"images": np.zeros((1, 3, 4, 6)), "labels": np.zeros(1, int)},
                   r"array images must have at least 2 samples, not 1"),
    "other size": (arrays((10, 3, 6, 4)), r"array images must have images of 3x4x6 for tiny, that "
                   r"is shape \(10, 3, 4, 6\) or \(10, 4, 6, 3\), not \(10, 3, 6, 4\); resize "
                   r"them, or take a network for them"),
    "grey": (arrays((10, 4, 6)), r"array images must have images of 3x4x6 for tiny, .*, not "
             r"\(10, 4, 6\); .*"),
    "a number": ({"images": np.float32(1), "labels": np.zeros(1, int)}, r"array labels must have "
                 r"as many rows as images has samples, at least one: 0 samples, 1 rows of labels"),
    "not finite": (changed(images=NOT_FINITE), r"array images must have finite numbers, but sample "
                   r"7 has nan in it"),
    "beyond FP32": (changed(images=np.full((10, 3, 4, 6), 1e300)), r"array images must have finite "
                    r"numbers, but sample 0 has inf in it"),
    "class too large": (changed(labels=np.arange(10)), r"array labels must be in 0\.\.3, the "
                        r"classes of tiny, but sample 4 has 4"),
    "class below 0": (changed(labels=np.arange(10) - 1), r"array labels must be in 0\.\.3, the "
                      r"classes of tiny, but sample 0 has -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FILES)
def test_npz_that_does_not_fit(name, tmp_path):
    content, message = WRONG_FILES[name]
    assert re.fullmatch(message, refused(saved(tmp_path / "a.npz", **content)))


def with_header(path, header, rest=b""):
    """A file whose array of images begins with a header of one's own."""
    labels = io.BytesIO()
    np.save(labels, np.zeros(10, int))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header + rest)
        archive.writestr("labels.npy", labels.getvalue())
    return path


def header_of(shape, dtype="<f4", version=(1, 0)):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text.encode()


@pytest.mark.parametrize(
    ("header", "rest", "message"),
    [
        (header_of((10, 3, 4, 6)), bytes(100), r"array images is damaged: .*"),
        (header_of((10, 3, 4, 6)), bytes(2881), r"array images is damaged: it goes on behind its "
         r"last number"),
        (header_of((10, 3, 4, 6), version=(2, 0)), bytes(2880), r"array images is damaged: its "
         r"format must be 1\.0, not 2\.0"),
        (header_of((10, 3, 4, -6)), b"", r"array images .*"),
        (b"no header", b"", r"array images is damaged: .*"),
        (b"\x93NUMPY\1\0\x10\0{'shape': ((((  ", b"", r"array images is damaged: .*"),
        (b"", b"", r"array images is damaged: .*"),
    ],
)  # fmt: skip
def test_npz_with_a_strange_array(header, rest, message, tmp_path):
    assert re.fullmatch(message, refused(with_header(tmp_path / "a.npz", header, rest)))


def test_an_array_that_claims_to_be_huge_is_not_read(tmp_path):
    count = 10**10
    path = with_header(tmp_path / "a.npz", header_of((count, 3, 4, 6)))
    with zipfile.ZipFile(path) as archive:
        images = archive.read("images.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", header_of((count,), "<i8"))
    assert re.fullmatch(
        r"array images must be at most 4 GiB as FP32, not 2\.68e\+03 GiB: 10,000,000,000 samples "
        r"of 3x4x6; unpack it and name the folder; its \.npy files are read while they are used",
        refused(path),
    )


def test_damaged_npz(tmp_path):
    """Cut off or changed anywhere: refused, or what was saved."""
    path = saved(tmp_path / "good.npz", **arrays((2, 1, 4, 6)))
    whole = path.read_bytes()
    expected = all_images(load_data(str(path), GREY))
    bad = tmp_path / "bad.npz"
    rng = np.random.default_rng(0)
    refusals = []
    changes = [whole[:at] for at in range(0, len(whole), 7)]
    for at in rng.integers(0, len(whole), 150):
        changes.append(
            whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]
        )
    for content in changes:
        bad.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = load_data(str(bad), GREY)
        except FileError as error:
            refusals.append(error.path)
        else:
            np.testing.assert_array_equal(all_images(found), expected)
    assert set(refusals) == {bad}
    assert len(refusals) > len(changes) // 2


def test_data_that_is_not_there(tmp_path):
    with pytest.raises(
        UserError, match=r"^no data 'digit'; did you mean 'digits'\? \(there are digits, random; "
    ):
        load_data("digit", COLOUR)
    assert refused(tmp_path / "a.npz") == "there is no such file"
    (tmp_path / "a.txt").write_text("x")
    assert refused(tmp_path / "a.txt") == (
        "a row of tokens is for a network that predicts the token behind each of its input, which "
        "tiny does not; use a .npz file with labels"
    )
    (tmp_path / "a.txt").rename(tmp_path / "a.csv")
    assert refused(tmp_path / "a.csv") == (
        "data must be a .npz or .txt file, or a folder of .npy files or of images by class"
    )


def test_outputs_that_take_unlike_labels():
    tokens = built_in("bert_base")
    with pytest.raises(UserError, match=r"^the outputs of bert_base take labels of different sha"):
        load_data("digits", tokens)
    found = load_data("random", tokens).train
    assert {name: each.shape[1:] for name, each in found.of_outputs.items()} == {
        tokens.outputs[0]: (128,),
        tokens.outputs[1]: (),
    }


# ---------------------------------------------------------------------- folders


def image(path, colour, size=(6, 4), mode="RGB", **options):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Three classes of colours, with files that are none of its images."""
    pytest.importorskip("PIL", reason="needs the data extra")
    for k, name in enumerate(("blue", "green", "red")):
        for number in range(5):
            colour = [0, 0, 0]
            colour[2 - k] = 50 * number + 5
            image(tmp_path / "data" / name / f"{number}.png", tuple(colour))
    (tmp_path / "data" / "blue" / "notes.txt").write_text("x")
    (tmp_path / "data" / "red" / ".hidden.png").write_text("x")
    (tmp_path / "data" / ".cache").mkdir()
    return tmp_path / "data"


def test_folder(folder):
    found = load_data(str(folder), COLOUR)
    assert (len(found.train.labels), len(found.validation.labels)) == (12, 3)
    assert found.note == "3 of 15 samples, drawn with a fixed seed, are for validation"
    for images, label in zip(found.train.images, found.train.labels, strict=True):
        own = images[2 - label]
        assert (own == own[0, 0]).all()
        assert round(float(own[0, 0]) * 255) % 50 == 5
        assert not np.delete(images, 2 - label, axis=0).any()
    grey = load_data(str(folder), GREY)
    assert grey.train.images.shape == (12, 1, 4, 6)


def test_folder_with_validation(tmp_path):
    pytest.importorskip("PIL", reason="needs the data extra")
    for part, number in (("train", 3), ("val", 2)):
        for name in ("10", "9"):
            for k in range(number):
                image(tmp_path / part / name / f"{k}.bmp", (int(name), k, 0))
    found = load_data(str(tmp_path), COLOUR)
    assert not found.note
    # Numbers go by their size: 9 is class 0.
    assert [round(float(x[0, 0, 0]) * 255) for x in found.train.images] == [9] * 3 + [10] * 3
    assert found.train.labels.tolist() == [0] * 3 + [1] * 3
    assert found.validation.labels.tolist() == [0, 0, 1, 1]
    image(tmp_path / "val" / "11" / "0.png", (0, 0, 0))
    with pytest.raises(FileError, match=r"val: has classes that .*train has not: 11$"):
        load_data(str(tmp_path), COLOUR)


def test_folder_that_does_not_fit(folder):
    deep = image(folder / "blue" / "deep.png", 1000, mode="I;16")
    assert refused_file(folder) == (deep, "must have 8 bits a channel, not those of mode I;16")
    deep.unlink()
    (folder / "empty").mkdir()
    path, text = refused_file(folder)
    assert path == folder / "empty"
    assert text.startswith("must have at least one image (.bmp, .jpeg, ")
    for name in "abc":
        image(folder / name / "0.png", (0, 0, 0))
    assert refused_file(folder) == (
        folder, "must have at most 4 folders, one for each class of tiny, not 7"
    )  # fmt: skip
    with pytest.raises(FileError, match=r"images have 1 or 3 channels, but tiny takes 2x4x6; use "):
        load_data(str(folder), network(2, 4, 6))


def refused_file(folder, graph=COLOUR):
    with pytest.raises(FileError) as caught:
        load_data(str(folder), graph)
    (fault,) = caught.value.faults
    return caught.value.path, fault


def test_an_empty_folder(tmp_path):
    pytest.importorskip("PIL", reason="needs the data extra")
    assert refused_file(tmp_path) == (
        tmp_path, "must have a folder of images for each class; it has no folder"
    )  # fmt: skip


def test_folders_need_an_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^a folder of images needs PIL: pip install 'fpgapipe\["):
        load_data(str(tmp_path), COLOUR)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp"])
def test_damaged_images(suffix, folder):
    """Cut off or changed anywhere: refused by name, or read."""
    path = folder / "red" / f"9.{suffix}"
    image(path, (7, 0, 0))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refusals = []
    step = max(len(whole) // 15, 1)
    changes = [whole[:at] for at in range(0, len(whole), step)]
    for at in rng.integers(0, len(whole), 60):
        changes.append(
            whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]
        )
    from fpgapipe.host.data.data_folder import _image
    from fpgapipe.host.data.samples import Wanted

    wanted = Wanted.of(COLOUR)
    for content in changes:
        path.write_bytes(content)
        try:
            assert _image(path, wanted)[0].shape == (3, 4, 6)
        except FileError as error:
            refusals.append(error.path)
    assert set(refusals) == {path}
    assert len(refusals) > 10
    path.write_bytes(whole[: len(whole) // 2])
    assert refused_file(folder)[0] == path


@pytest.mark.parametrize("kind", ["EPS", "GIF", "TIFF", "ICO"])
def test_images_are_of_the_formats_that_they_are_called(kind, folder, monkeypatch, tmp_path):
    """Pillow goes by the first bytes of a file, and runs Ghostscript where they are of EPS."""
    image(folder / "blue" / "9.png", (1, 2, 3), format=kind)
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\necho 10.0\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert refused_file(folder) == (
        folder / "blue/9.png",
        "is no image of a format that is read (PNG, JPEG, BMP, PPM, WEBP)",
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["fifo", "device", "loop", "sparse", "empty", "folder"])
def test_what_is_no_image_file(kind, folder):
    path = folder / "blue" / "9.png"
    ODD[kind](path)
    assert refused_file(folder)[0] == path

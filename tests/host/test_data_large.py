"""Data that stay in their files: the samples, order and bits are those of data in memory."""

import os
import re
import tracemalloc

import numpy as np
import pytest
from run_cases import CountingBackend, counting, small_build, small_network
from test_data import COLOUR, GREY, WRONG_FILES, arrays, image, network, refused
from test_data_inputs import padded, pair
from test_data_tokens import language, pixels, sentences

import fpgapipe
from fpgapipe.errors import FileError, UserError
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.data_folder import ImageFiles
from fpgapipe.host.data.rows import Rows
from fpgapipe.host.data.sample_checks import check_samples, digest_of
from fpgapipe.host.data.samples import Wanted
from fpgapipe.host.runtime.settings import Settings
from fpgapipe.host.runtime.training import Trainer
from fpgapipe.network.losses import CROSS_ENTROPY, Loss


def folder_of(path, **content):
    """The arrays as files of a folder, which is what unpacking a .npz file gives."""
    path.mkdir()
    for name, value in content.items():
        np.save(path / f"{name}.npy", value)
    return path


def both(tmp_path, content, graph, loss=CROSS_ENTROPY):
    np.savez(tmp_path / "a.npz", **content)
    folder_of(tmp_path / "a", **content)
    return [load_data(str(tmp_path / name), graph, loss) for name in ("a.npz", "a")]


def assert_same(one, other):
    """All arrays of samples are equal, type included."""
    assert len(one.others) == len(other.others)
    assert one.of_outputs.keys() == other.of_outputs.keys()
    pairs = [
        (one.images, other.images),
        (one.labels, other.labels),
        *zip(one.others, other.others, strict=True),
        *((each, other.of_outputs[name]) for name, each in one.of_outputs.items()),
        (one.names, other.names),
    ]
    for mine, its in pairs:
        assert mine.shape == its.shape
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(its), strict=True)


RNG = np.random.default_rng(0)
CASES = {
    "channels first": (COLOUR, arrays()),
    "channels last": (COLOUR, arrays((10, 4, 6, 3), np.float64)),
    "grey of bytes": (GREY, arrays((10, 4, 6), np.uint8)),
    "big-endian": (GREY, arrays((10, 4, 6), np.dtype(">f4"))),
    "half": (GREY, arrays((10, 4, 6), np.float16)),
    "tokens": (
        sentences(),
        {"tokens": np.arange(60).reshape(6, 10) % 16, "labels": np.arange(6) % 3},
    ),
    "a long row": (language(), {"tokens": (np.arange(331) % 100).astype(np.uint16)}),
    "pixels": (pixels(), arrays() | {"labels": RNG.integers(0, 5, (10, 4, 6))}),
    "several inputs": (
        pair(),
        {
            "source": RNG.integers(0, 11, (8, 7)),
            "target": RNG.integers(0, 9, (8, 5)),
            "image": RNG.random((8, 3, 2, 2)),
            "labels": RNG.integers(0, 6, (8, 5)),
        },
    ),
    "masks": (
        padded(),
        {
            "tokens": RNG.integers(0, 11, (10, 6)),
            "mask": RNG.random((10, 6)) < 0.3,
            "counts": RNG.integers(-9, 9, (10, 2)),
            "labels": RNG.integers(0, 6, (10, 6)),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_folders_of_arrays_are_what_their_file_is(name, tmp_path):
    graph, content = CASES[name]
    held, later = both(tmp_path, content, graph)
    assert held.note == later.note
    assert isinstance(later.train.images, Rows)
    for part in ("train", "validation"):
        one, other = getattr(held, part), getattr(later, part)
        check_samples(other, graph)
        assert_same(one, other)
        for size, seed, epoch in ((2, None, 0), (2, 3, 0), (1, 3, 5)):
            for mine, its in zip(
                one.batches(size, seed, epoch), other.batches(size, seed, epoch), strict=True
            ):
                assert isinstance(its.images, np.ndarray)
                assert_same(mine, its)
    assert_same(held.train.followed_by(held.validation), later.train.followed_by(later.validation))
    assert digest_of(later.train) == digest_of(later.train)
    assert digest_of(later.train) != digest_of(later.validation)


@pytest.mark.parametrize("loss", [Loss("mse"), Loss("bce"), Loss(ignores=True)], ids=str)
def test_targets_and_ignored_labels(loss, tmp_path):
    content = arrays()
    content["targets"] = RNG.random((10, 4))
    if loss.ignores:
        content["labels"][3] = -100
    held, later = both(tmp_path, content, COLOUR, loss)
    assert_same(held.train, later.train)
    if loss.ignores:
        # In memory each label can be looked at; labels of files are judged by what may be read.
        check_samples(later.train, COLOUR, loss)


def test_rows_of_one_network_are_not_those_of_another(tmp_path):
    """What is read later was checked for the network that it was loaded for."""
    large = network(3, 4, 6, classes=9)
    graph = language(classes=128)
    row = folder_of(tmp_path / "row", tokens=np.zeros(331, np.uint8))
    check_samples(load_data(str(row), graph).train, graph)
    with pytest.raises(UserError, match=r"^tokens must be whole numbers in 0\.\.15, those of sent"):
        check_samples(load_data(str(row), graph).train, sentences())
    pictures = folder_of(tmp_path / "pictures", **arrays())
    check_samples(load_data(str(pictures), COLOUR).train, large)
    wide = folder_of(tmp_path / "wide", **arrays() | {"labels": np.zeros((10, 4, 6), int)})
    samples = load_data(str(wide), pixels()).train
    with pytest.raises(UserError, match=r"^labels must be 0\.\.4, the classes of pixels, not -1"):
        check_samples(load_data(str(wide), pixels(), Loss(ignores=True)).train, pixels())
    check_samples(samples, pixels())


def test_batches_begin_where_a_run_goes_on():
    samples = load_data("random", GREY).train
    whole, rest = (list(samples.batches(100, 3, 1, first)) for first in (0, 4))
    assert len(rest) == 6
    for one, other in zip(whole[4:], rest, strict=True):
        assert_same(one, other)


SEEN_LATER = ("not finite", "beyond FP32")


@pytest.mark.parametrize("name", sorted(WRONG_FILES.keys() - {"pickles"}))
def test_folders_that_do_not_fit(name, tmp_path):
    """Refused as the file would be; numbers of inputs when they are read, or in the first look."""
    content, message = WRONG_FILES[name]
    folder = tmp_path / "a"
    folder_of(folder, **content)
    if name not in SEEN_LATER:
        assert re.fullmatch(message, refused(folder))
        return
    for look in (digest_of, lambda samples: list(samples.batches(1))):
        with pytest.raises(FileError) as caught:
            look(load_data(str(folder), COLOUR).train)
        assert re.fullmatch(message, caught.value.faults[0])


def test_damaged_files_of_arrays(tmp_path):
    folder = folder_of(tmp_path / "a", **arrays())
    path = folder / "images.npy"
    whole = path.read_bytes()

    def damage():
        with pytest.raises(FileError) as caught:
            digest_of(load_data(str(folder), COLOUR).train)
        assert caught.value.path == path
        return caught.value.faults[0]

    for content in (whole[:-1], whole + b"x"):
        path.write_bytes(content)
        assert damage() == (
            f"array images is damaged: its header tells of 3,008 bytes, and it has {len(content):,}"
        )
    for content in (whole[:50], b"", b"\x93NUMPY\1\0\x10\0{'shape': ((((  ", bytes(200)):
        path.write_bytes(content)
        assert damage().startswith("array images is damaged: ")
    np.save(path, np.asfortranarray(arrays()["images"]))
    assert damage() == (
        "array images has its first axis innermost (Fortran's order), so that its rows do not lie "
        "together; save it with numpy.ascontiguousarray"
    )
    np.save(path, np.array([{}] * 10))
    assert damage() == (
        "array images holds Python objects (pickles), which are never read; save numbers"
    )
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match=r"images\.npy: must have at least one image"):
        load_data(str(folder), COLOUR)
    with pytest.raises(FileError, match=r"is one array; name the folder that has it and its label"):
        load_data(str(folder / "labels.npy"), COLOUR)


@pytest.mark.parametrize("change", ["cut off", "other bytes"])
def test_a_file_that_changes_while_it_is_read(change, tmp_path):
    """A memory map would end the process here, or give numbers that nobody has looked at."""
    folder = folder_of(tmp_path / "a", **arrays())
    batches = load_data(str(folder), COLOUR).train.batches(2)
    next(batches)
    path = folder / "images.npy"
    path.write_bytes(path.read_bytes()[:500] if change == "cut off" else path.read_bytes())
    with pytest.raises(FileError, match=r"images\.npy: has changed since its first rows"):
        list(batches)


@pytest.mark.parametrize("change", ["cut off", "other bytes"])
def test_a_file_that_changes_between_two_reads_of_a_batch(change, tmp_path, monkeypatch):
    """Rows that are read after the change are not given as those that were looked at."""
    folder = folder_of(tmp_path / "a", **arrays())
    rows = load_data(str(folder), COLOUR).train.images
    path, read = folder / "images.npy", os.preadv
    old = path.read_bytes()

    def changed(*of):
        path.write_bytes(old[:500] if change == "cut off" else old)
        os.utime(path, ns=(0, 0))  # clocks of file systems may be coarse
        return read(*of)

    monkeypatch.setattr(os, "preadv", changed)
    with pytest.raises(FileError, match=r"images\.npy: has changed since its first rows"):
        np.asarray(rows)


def test_the_whole_array_is_never_in_memory(tmp_path):
    """A look at all of a file of 64 MiB, 256 MiB in FP32, and batches, take less than 16."""
    graph = network(1, 64, 64)
    count = 1 << 14
    folder = folder_of(tmp_path / "a", labels=np.arange(count) % 4)
    sparse = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (count, 64, 64))
    sparse[5] = 255
    del sparse
    tracemalloc.start()
    try:
        data = load_data(str(folder), graph)
        digest_of(data.train)
        sums = [float(batch.images.sum()) for batch in data.train.batches(64, 0)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sums) == 13107 // 64
    assert sum(sums) in (0, 64 * 64)
    assert peak < 16 << 20


# ---------------------------------------------------------------------- training


def lazily(tmp_path):
    """The samples of `run_cases.counting`, as a folder of arrays."""
    held = load_data("random", small_network()).train.some(slice(100))
    folder_of(tmp_path / "data", images=held.images, labels=held.labels,
              validation_images=held.images[:9], validation_labels=held.labels[:9])  # fmt: skip
    return load_data(str(tmp_path / "data"), small_network()).train


def test_a_run_is_the_same_and_goes_on_after_a_break(tmp_path, monkeypatch):
    whole = counting(tmp_path / "held", Settings(steps=15))
    whole.run()
    train = lazily(tmp_path)

    def trainer():
        own = Settings(steps=15)
        return Trainer(
            CountingBackend(), train, own, tmp_path / "later", build="b", checkpoint_every=2
        )

    first = trainer()
    read = Rows.__array__
    asked = []

    def interrupted(self, dtype=None, copy=None):
        asked.append(len(self))
        if len(asked) == 10:
            raise KeyboardInterrupt
        return read(self, dtype, copy)

    monkeypatch.setattr(Rows, "__array__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert 5 < first.step < 15
    monkeypatch.setattr(Rows, "__array__", read)
    second = trainer()
    second.resume()
    assert second.step == first.step
    assert second.run().ran == 15 - first.step
    for name, value in whole._backend.state().items():
        np.testing.assert_array_equal(value, second._backend.state()[name])
    (tmp_path / "data/labels.npy").write_bytes((tmp_path / "data/labels.npy").read_bytes())
    other = np.load(tmp_path / "data/images.npy")
    other[-1, 0, 3, 3] += 1
    np.save(tmp_path / "data/images.npy", other)
    train = load_data(str(tmp_path / "data"), small_network()).train
    with pytest.raises(UserError, match=r"was made with other settings: data"):
        trainer().resume()


@pytest.mark.parametrize("backend", ["model", "torch"])
def test_runs_and_predictions_from_files_have_the_same_bits(backend, tmp_path, monkeypatch):
    if backend == "torch":
        pytest.importorskip("torch", reason="needs the torch extra")
    small_build(tmp_path / "b", monkeypatch)
    found = load_data("random", small_network())
    content = {
        **{"images": found.train.images[:100], "labels": found.train.labels[:100]},
        "validation_images": found.validation.images[:30],
        "validation_labels": found.validation.labels[:30],
    }
    np.savez(tmp_path / "d.npz", **content)
    folder_of(tmp_path / "d", **content)
    states, accuracies, rows = [], [], []
    for data in ("d.npz", "d"):
        given = {"data": str(tmp_path / data), "learning_rate": 0.05}
        ran = fpgapipe.run(tmp_path / "b", backend, epochs=1, **given)
        accuracies.append(ran.summary.accuracy)
        path = tmp_path / f"b/run/{backend}/checkpoints/step-00000012.ckpt"
        states.append(fpgapipe.read_checkpoint(path).state)
        for part in ("validation", "all"):
            own = fpgapipe.predict(path.parent.parent, given["data"], part=part, first=121)
            rows.append(own.rows)
    assert accuracies[0] == accuracies[1] > 0.1
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name])
    assert rows[:2] == rows[2:]
    assert [len(each) for each in rows] == [30, 121] * 2
    with pytest.raises(UserError, match=r"was made with other settings: data"):
        fpgapipe.run(tmp_path / "b", backend, resume=True, more=1, data=str(tmp_path / "d.npz"))
    changed = {"data": str(tmp_path / "d.npz")}
    ran = fpgapipe.run(tmp_path / "b", backend, resume=True, more=1, changes=changed)
    assert ran.summary.steps == 13


# ---------------------------------------------------------------------- images


@pytest.fixture
def pictures(tmp_path):
    """Three classes of coloured gradients, of several sizes and formats."""
    Image = pytest.importorskip("PIL.Image", reason="needs the data extra")
    rng = np.random.default_rng(0)
    for name in ("blue", "green", "red"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(7):
            size = [(6, 4), (12, 8), (9, 20), (30, 5), (2, 2), (6, 5), (64, 64)][number]
            pixels = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
            suffix = ("png", "jpg", "bmp")[number % 3]
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.{suffix}")
    return tmp_path / "data"


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_images_are_the_same_whatever_the_number_of_threads(workers, pictures, monkeypatch):
    held = load_data(str(pictures), COLOUR)
    monkeypatch.setattr("fpgapipe.host.data.data_folder.HELD_BYTES", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", str(workers))
    later = load_data(str(pictures), COLOUR)
    assert held.note == (
        "4 of 21 samples, drawn with a fixed seed, are for validation; 18 of 21 images were "
        "resized to cover 6x4, and cropped to their middle"
    )
    assert later.note.endswith(
        "; images of other sizes than 6x4 are resized, and cropped to the middle, while they are "
        "read in training"
    )
    assert isinstance(later.train.images, Rows)
    assert_same(held.validation, later.validation)
    for one, other in zip(held.train.batches(4, 7), later.train.batches(4, 7), strict=True):
        assert_same(one, other)
    assert digest_of(later.train) == digest_of(load_data(str(pictures), COLOUR).train)


def test_images_cover_the_input_and_lose_their_margins(tmp_path):
    Image = pytest.importorskip("PIL.Image", reason="needs the data extra")
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 24), np.uint8))
    (tmp_path / "a").mkdir()
    wide.save(tmp_path / "a" / "a.png")
    files = ImageFiles(tmp_path, np.array(["a/a.png"]), Wanted.of(GREY))
    found = files.read(np.array([0]))[0, 0]
    expected = wide.resize((12, 4), Image.Resampling.BILINEAR).crop((3, 0, 9, 4))
    np.testing.assert_array_equal(found, np.asarray(expected, np.float32) / np.float32(255))


def test_a_bad_image_names_its_file_and_the_run_is_kept(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("fpgapipe.host.data.data_folder.HELD_BYTES", 0)
    for each in pictures.glob("*/6.png"):
        for number in range(20):
            (each.parent / f"more{number}.png").write_bytes(each.read_bytes())
    train = load_data(str(pictures), small_network()).train
    bad = pictures / str(train.names[55])
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    trainer = Trainer(CountingBackend(), train, Settings(epochs=1), tmp_path / "run", build="b")
    with pytest.raises(FileError, match=r"cannot be read as an image: ") as caught:
        trainer.run()
    assert caught.value.path == bad
    order = np.arange(len(train.labels))
    np.random.default_rng((trainer.settings.seed, 0)).shuffle(order)
    assert trainer.step == order.tolist().index(55) // 8
    bad.write_bytes(whole)
    again = Trainer(
        CountingBackend(), load_data(str(pictures), small_network()).train, Settings(epochs=1),
        tmp_path / "run", build="b",
    )  # fmt: skip
    with pytest.raises(UserError, match=r"was made with other settings: data"):
        again.resume()
    again.resume(changes=["data"])
    assert again.run().steps == len(train.labels) // 8


def test_too_many_pixels(pictures, monkeypatch):
    monkeypatch.setattr("fpgapipe.host.data.data_folder.MAX_PIXELS", 64 * 64 - 1)
    with pytest.raises(FileError, match=r"6\.png: must have at most 4,095 pixels, not 64x64$"):
        load_data(str(pictures), COLOUR)


def test_many_images_without_classes(pictures, monkeypatch):
    from fpgapipe.host.data.data_folder import read_images

    held = read_images(pictures / "red", Wanted.of(COLOUR))
    monkeypatch.setattr("fpgapipe.host.data.data_folder.HELD_BYTES", 0)
    assert_same(held, read_images(pictures / "red", Wanted.of(COLOUR)))
    assert held.names[0] == "0.png"
    image(pictures / "red" / "deep.png", 1000, mode="I;16")
    with pytest.raises(FileError, match=r"deep\.png: must have 8 bits a channel"):
        np.asarray(read_images(pictures / "red", Wanted.of(COLOUR)).images)

"""Predictions for samples: classes, probabilities, names of files, and how good they are."""

import csv
import json
import shutil

import numpy as np
import pytest
from run_cases import small_network

import fpgapipe
from fpgapipe.host.cli.main import main
from fpgapipe.host.predict.predictions import Predictions, rows_of

Image = pytest.importorskip("PIL.Image", reason="needs the data extra")

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of images by class, each a stripe in noise, and one of images without classes."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for part, count in (("train", 16), ("val", 4)):
        for number, name in enumerate(CLASSES):
            (folder / "known" / part / name).mkdir(parents=True)
            for each in range(count):
                pixels = rng.integers(0, 60, (8, 8), np.uint8)
                pixels[:, 2 * number : 2 * number + 3] += 180
                Image.fromarray(pixels).save(folder / "known" / part / name / f"{each}.png")
    (folder / "unknown").mkdir()
    for name in CLASSES:
        source = folder / "known" / "val" / name / "0.png"
        (folder / "unknown" / f"a-{name}.png").write_bytes(source.read_bytes())
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pictures):
    folder = tmp_path_factory.mktemp("trained") / "small"
    boards = fpgapipe.chain_of(fpgapipe.load_board("u280"), 2)
    fpgapipe.build(small_network, boards, folder, batch=8, micro_batches=2, array=(4, 4))
    data = str(pictures / "known")
    fpgapipe.run(folder, "model", data=data, steps=60, learning_rate=0.05, validates=False)
    return folder


def test_classes_by_file(trained, pictures, tmp_path, capsys):
    file = tmp_path / "found.csv"
    words = ["predict", str(trained), "--data", str(pictures / "known"), "-o", str(file), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"][:4] == [*CLASSES, "3"]
    assert found["accuracy"] == 1.0
    assert found["confusion"] == {name: {name: 4} for name in CLASSES}
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["sample"] for row in rows[:2]] == ["cat/0.png", "cat/1.png"]
    assert all(row["class"] == row["label"] == row["sample"].split("/")[0] for row in rows)
    assert all(float(row["probability"]) >= float(row["probability_2"]) for row in rows)
    kept = json.loads((trained / "run" / "model" / "predictions.json").read_text())
    assert kept == found


def test_images_without_classes_get_those_of_the_training(trained, pictures):
    found = fpgapipe.predict(trained, str(pictures / "unknown"))
    assert {row["sample"]: row["class"] for row in found.rows} == {
        f"a-{name}.png": name for name in CLASSES
    }
    assert found.accuracy is None
    assert found.rows[0]["label"] is None
    assert "label" not in str(found)


def test_validation_counts_the_same(trained, pictures):
    """The accuracy is that of the run's own validation, and of all samples together."""
    data = str(pictures / "known")
    found = fpgapipe.predict(trained / "run" / "model", data, part="all")
    parts = [fpgapipe.predict(trained, data, part=part) for part in ("train", "validation")]
    assert [len(each.rows) for each in (*parts, found)] == [48, 12, 60]
    assert [row["sample"] for each in parts for row in each.rows] == [
        row["sample"] for row in found.rows
    ]


@pytest.mark.sim
def test_simulated_hardware_gives_the_models_bits(trained, pictures):
    data = str(pictures / "known")
    model, sim = (
        fpgapipe.predict(trained, data, backend=backend, first=4) for backend in ("model", "sim")
    )
    assert model.rows == sim.rows
    assert model.cycles is None
    assert sim.cycles > 1000


def test_a_build_for_inference_gives_the_same(trained, pictures, tmp_path):
    """As many samples at once as the build takes, by its own programs."""
    data = str(pictures / "known")
    checkpoint = max((trained / "run/model/checkpoints").glob("*.ckpt"))
    folder = tmp_path / "infer"
    fpgapipe.build(
        small_network,
        fpgapipe.chain_of(fpgapipe.load_board("u280"), 2),
        folder,
        batch=8,
        micro_batches=2,
        array=(4, 4),
        options=fpgapipe.StepOptions(train=False),
        parameters=str(checkpoint),
        hardware=False,
    )
    found = fpgapipe.predict(folder, data)
    assert found.weights == folder
    assert found.rows == fpgapipe.predict(trained, data).rows


def test_the_report_shows_them(trained, pictures):
    fpgapipe.predict(trained, str(pictures / "known"), part="all")
    page = fpgapipe.report(trained).page.read_text()
    assert '<section id="predictions"' in page
    assert "Accuracy by class" in page
    assert "owl" in page
    kept = trained / "run" / "model" / "predictions.json"
    good = kept.read_text()
    try:
        for text in ("{", good.replace('"accuracy": ', '"accuracy": 7')):
            kept.write_text(text)
            assert "predictions.json cannot be used" in fpgapipe.report(trained).page.read_text()
    finally:
        kept.write_text(good)


def test_probabilities_and_worst():
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.25, 0.25, 0.5]], np.float32))
    rows = rows_of(logits, np.array([0, 0, 1]), [], ("a", "b", "c"))
    found = Predictions("n", None, "d", "model", ("a", "b", "c"), rows)
    assert [row["class"] for row in rows] == ["a", "c", "c"]
    np.testing.assert_allclose([row["probability"] for row in rows], [0.7, 0.8, 0.5], rtol=1e-6)
    assert [name for name, _ in rows[2]["top"]] == ["c", "a", "b"]  # of equal ones the first
    assert found.accuracy == pytest.approx(1 / 3)
    assert found.top_accuracy == 1
    assert found.confusion == {"a": {"a": 1, "c": 1}, "b": {"c": 1}}
    assert [row["sample"] for row in found.worst] == ["1", "2"]
    assert found.by_class == [
        {"class": "a", "samples": 2, "accuracy": 0.5},
        {"class": "b", "samples": 1, "accuracy": 0.0},
    ]


def refused(capsys, *words):
    assert main(["predict", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_what_is_refused(trained, pictures, tmp_path, capsys):
    data = ("--data", pictures / "known")
    assert "are written as .csv or .json" in refused(capsys, trained, *data, "-o", "x.txt")
    assert "has no checkpoint after step 7" in refused(capsys, trained, *data, "--step", 7)
    assert "makes a build for inference" in refused(capsys, trained, *data, "--backend", "torch")
    assert "is not there" in refused(capsys, tmp_path / "none", *data)
    (tmp_path / "bat").mkdir()
    picture = pictures / "unknown" / "a-cat.png"
    for name in "01":
        (tmp_path / "bat" / f"{name}.png").write_bytes(picture.read_bytes())
    assert "has classes that the training had not: bat; it had cat, dog, owl" in refused(
        capsys, trained, "--data", tmp_path
    )
    (tmp_path / "bat" / "1.png").write_bytes(picture.read_bytes()[:40])
    assert "1.png: is no image of a format that is read" in refused(
        capsys, trained, "--data", tmp_path / "bat"
    )


def test_a_folder_called_as_a_source_of_samples_is_not_taken_for_it(trained, tmp_path, monkeypatch):
    """A build may have the name of its data, in the folder in which it is made."""
    monkeypatch.chdir(tmp_path)
    fpgapipe.run(trained, "model", data="random", steps=1, validates=False)
    expected = fpgapipe.predict(trained, "random", first=20)
    assert expected.classes == tuple(map(str, range(10)))
    for each in ("hardware", "run"):
        (tmp_path / "random" / each).mkdir(parents=True)
    assert fpgapipe.predict(trained, "random", first=20) == expected
    shutil.rmtree(tmp_path / "random")
    (tmp_path / "random").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "random" / "a.png")
    np.save(tmp_path / "random" / "images.npy", np.zeros(3))
    assert fpgapipe.predict(trained, "random", first=20) == expected

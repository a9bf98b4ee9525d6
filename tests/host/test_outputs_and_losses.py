"""Networks with several outputs, from data and command line to validation and inference."""

import json

import numpy as np
import pytest

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.host.data.data import load_data
from fpgapipe.network.graph_json import from_json, to_json
from fpgapipe.network.losses import Loss
from fpgapipe.network.zoo.layers import Network

CLASSES = 5


def network(batch, auxiliary=()):
    """A network of two stages: classes of its second layer, and of its last, and a value."""
    net = Network("heads", batch)
    x = net.relu(net.linear(net.flatten(net.image(1, 4, 4)), 12, name="first"))
    aux = net.linear(x, CLASSES, name="aux")
    x = net.relu(net.linear(x, 12, name="second"))
    main = net.linear(x, CLASSES, name="main")
    value = net.linear(x, 2, name="value")
    return net.build([main, aux] if auxiliary else [main, aux, value], auxiliary)


LOSS = Loss(others=(("aux", Loss(weight=0.3)), ("value", Loss("mse"))))


def arrays(count=40, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "images": rng.standard_normal((count, 1, 4, 4), np.float32),
        "labels": rng.integers(0, CLASSES, count),
        "labels.aux": rng.integers(0, CLASSES, count),
        "targets.value": rng.random((count, 2), np.float32),
    }


def saved(path, found):
    np.savez(path, **found)
    return str(path)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_output_has_its_array(tmp_path):
    """An output without one shares that without a name."""
    given = arrays()
    later = {f"validation_{name}": each for name, each in arrays(7, 1).items()}
    data = load_data(saved(tmp_path / "own.npz", given | later), network(2), LOSS)
    for samples, found in ((data.train, given), (data.validation, arrays(7, 1))):
        np.testing.assert_array_equal(samples.labels, found["labels"])
        assert list(samples.of_outputs) == ["main", "aux", "value"]
        for name, array in (("main", "labels"), ("aux", "labels.aux"), ("value", "targets.value")):
            np.testing.assert_array_equal(samples.of_outputs[name], found[array])
    del given["labels.aux"]
    shared = load_data(saved(tmp_path / "shared.npz", given), network(2), LOSS).train
    np.testing.assert_array_equal(shared.of_outputs["aux"], shared.labels)
    assert len(shared.labels) == 32  # a fifth is for validation
    some = shared.some(np.array([3, 1]))
    np.testing.assert_array_equal(some.targets["value"], shared.of_outputs["value"][[3, 1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets.value": None}, "must have arrays images, labels, labels.aux and targets; it "),
        ({"targets.value": np.zeros((40, 3), np.float32)}, "array targets.value must hold float"),
        ({"targets.value": np.zeros((39, 2), np.float32)}, "array targets.value must have as man"),
        ({"labels.aux": np.full(40, CLASSES)}, "array labels.aux must be in 0..4, the classes of"),
        ({"labels.other": np.zeros(40, int)}, "has array labels.other, which is no input of hea"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, change, message):
    found = {name: each for name, each in (arrays() | change).items() if each is not None}
    with pytest.raises(FileError, match=message):
        load_data(saved(tmp_path / "wrong.npz", found), network(2), LOSS)


def test_other_data_have_labels_for_all_outputs():
    graph = network(2, ["aux"])
    drawn = load_data("random", graph).train
    np.testing.assert_array_equal(drawn.of_outputs["aux"], drawn.of_outputs["main"])
    with pytest.raises(UserError, match=r"^data random have classes, and heads is trained for tar"):
        load_data("random", network(2), LOSS)


def test_auxiliary_outputs_are_not_evaluated():
    graph = network(2, ["aux"])
    assert from_json(to_json(graph)).auxiliary == ("aux",)
    assert graph.evaluated.outputs == ("main",)
    assert set(graph.layers) - set(graph.evaluated.layers) == {"aux", "value"}
    assert network(2).evaluated.outputs == ("main", "aux", "value")


@pytest.fixture
def build(tmp_path, monkeypatch, cli):
    """Return a function that builds the network with some options."""
    from fpgapipe.host.make import networks

    def make(*options, auxiliary=()):
        monkeypatch.setattr(networks.Loader, "_load", lambda _, batch: network(batch, auxiliary))
        monkeypatch.chdir(tmp_path)
        boards = ("--board", "u280", "--devices", 2, "--array", "8x8", "--batch", 8)
        return cli("build", *boards, "--micro-batches", 2, "--no-verify", "-o", "b", *options)

    return make


def test_losses_of_outputs_from_the_command_line(build, cli, tmp_path):
    """Trained in the model and in PyTorch, which agree; each output is logged and validated."""
    code, _, err = build(
        "--output-loss", "value=mse", "--loss-weight", "aux=0.3", "--label-smoothing", 0.1
    )
    assert code == 0, err
    assert open_build(tmp_path / "b").options.loss == Loss(
        smoothing=0.1,
        others=(("value", Loss("mse")), ("aux", Loss(smoothing=0.1, weight=0.3))),
    )
    data = saved(tmp_path / "data.npz", arrays())
    code, out, err = cli(
        "run", "b", "--backend", "model", "--data", data, "--epochs", 1, "--check", "--json"
    )
    assert code == 0, err
    summary = json.loads(out)
    assert list(summary["outputs"]) == ["main", "aux", "value"]
    losses = {name: each["loss"] for name, each in summary["outputs"].items()}
    total = losses["main"] + 0.3 * losses["aux"] + losses["value"]
    assert summary["loss"] == pytest.approx(total, rel=1e-12)
    assert summary["outputs"]["value"]["accuracy"] is None
    assert summary["outputs"]["main"]["accuracy"] == summary["accuracy"]
    *_, step, validation = lines_of(tmp_path / "b/run/model")
    assert {name: each["labels"] for name, each in step["outputs"].items()} == {
        "main": 8, "aux": 8, "value": 0
    }  # fmt: skip
    assert step["correct"] == step["outputs"]["main"]["correct"]
    assert list(validation["validation"]["outputs"]) == ["main", "aux"]
    code, out, err = cli("run", "b", "--backend", "torch", "--data", data, "--epochs", 1)
    assert code == 0, err
    assert "of aux" in out
    theirs = lines_of(tmp_path / "b/run/torch")
    assert list(theirs[-1]["validation"]["outputs"]) == ["main", "aux"]
    for name, each in theirs[-2]["outputs"].items():
        assert each["loss"] == pytest.approx(losses[name], rel=0.02), name


def test_weights_of_classes_from_the_command_line(build, cli, tmp_path):
    """All outputs with classes have them; PyTorch's step has the same losses."""
    weights = "0.5,2,1,1,30"
    code, _, err = build("--output-loss", "value=mse", "--class-weights", weights)
    assert code == 0, err
    own = Loss(class_weights=(0.5, 2.0, 1.0, 1.0, 30.0))
    loss = open_build(tmp_path / "b").options.loss
    assert (loss.of("main"), loss.of("aux"), loss.of("value")) == (own, own, Loss("mse"))
    data = saved(tmp_path / "data.npz", arrays())
    found = {}
    for backend in ("model", "torch"):
        words = ("run", "b", "--backend", backend, "--data", data, "--steps", 2, "--no-validation")
        code, out, err = cli(*words, *(("--check",) if backend == "model" else ()), "--json")
        assert code == 0, err
        found[backend] = json.loads(out)["outputs"]
    for name, each in found["model"].items():
        assert each["loss"] == pytest.approx(found["torch"][name]["loss"], rel=0.02), name
    for given, said in (
        ("1,2", "there must be weights for 5 classes, those of main, not for 2"),
        ("1,x,1,1,1", "the weight of a class must be a number, not 'x'"),
        ("1,1,1,1,0", "the weight of a class must be in 1e-06..1e+06, not 0; a class that is not"),
    ):
        code, _, err = build("--class-weights", given)
        assert (code, said in err) == (2, True), err


def test_inference_leaves_auxiliary_outputs_out(build, cli, tmp_path):
    code, _, err = build("--loss-weight", "aux=0.4", auxiliary=["aux"])
    assert code == 0, err
    data = saved(tmp_path / "data.npz", {name: arrays()[name] for name in ("images", "labels")})
    code, out, err = cli("run", "b", "--backend", "model", "--data", data, "--epochs", 1, "--json")
    assert code == 0, err
    trained = json.loads(out)
    assert trained["outputs"]["aux"]["accuracy"] is None
    assert trained["accuracy"] is not None
    (checkpoint,) = sorted((tmp_path / "b/run/model/checkpoints").glob("*.ckpt"))[-1:]
    infer = ("--mode", "infer", "--parameters", checkpoint, "-o", "i")
    code, _, err = build(*infer, auxiliary=["aux"])
    assert code == 0, err
    assert open_build(tmp_path / "i").graph.outputs == ("main",)
    code, out, err = cli("run", "i", "--backend", "model", "--data", data, "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] == trained["accuracy"]


def test_inference_gives_all_outputs(build, cli, tmp_path):
    code, _, err = build("--mode", "infer")
    assert code == 0, err
    found = {"images": arrays()["images"], "labels": arrays()["labels"] % 2}
    data = saved(tmp_path / "data.npz", found)
    code, out, err = cli("run", "b", "--backend", "model", "--data", data, "--check", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert list(summary["outputs"]) == ["main", "aux", "value"]
    results = np.load(tmp_path / "b/run/model/logits.npz")
    for name, each in summary["outputs"].items():
        logits, labels = results[f"logits.{name}"], results[f"labels.{name}"]
        assert each["accuracy"] == (logits.argmax(1) == labels).mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--loss-weight", "axu=2"), "'axu' has a loss and is no output of heads; its outputs a"),
        (("--loss-weight", "aux=much"), "the weight of the loss of 'aux' must be a number, not '"),
        (("--loss-weight", "aux=nan"), "the weight of a loss must be in 1e-06..1e+06, not nan"),
        (("--loss-weight", "aux"), "--loss-weight must be an output, '=' and a value, not 'aux'"),
        (("--output-loss", "aux=l1"), "loss must be cross-entropy, mse, bce, not 'l1'"),
        (("--output-loss", "aux=mse", "--output-loss", "aux=bce"), "names output 'aux' twice"),
        (("--mode", "infer", "--loss-weight", "aux=2"), "inference has no loss: leave its options"),
    ],
)
def test_losses_that_make_no_sense_are_refused(build, options, message):
    code, _, err = build(*options)
    assert code == 2
    assert message in err


def test_inspect_names_the_outputs(cli, tmp_path, monkeypatch):
    (tmp_path / "own_heads.py").write_text(
        "from test_outputs_and_losses import network\n"
        "def heads(batch):\n    return network(batch, ['aux'])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = cli("inspect", "own_heads:heads")
    assert code == 0, err
    assert "outputs: main, aux (only in training)\n" in out

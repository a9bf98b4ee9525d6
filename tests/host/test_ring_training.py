"""Many models in a ring, from the command line to their weights."""

import json
from dataclasses import replace

import numpy as np
import pytest
from build_cases import cluster_of, tiny

from fpgapipe.errors import UserError
from fpgapipe.host.data.samples import Dataset, Samples
from fpgapipe.host.ring.ring_build import make_ring_build
from fpgapipe.host.ring.ring_training import RingTrainer, train_alone
from fpgapipe.host.ring.shards import shards_of
from fpgapipe.host.runtime.divergence import Diverged
from fpgapipe.host.runtime.settings import Settings
from fpgapipe.hw.rtl import core_verilog
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.strategies.plan_ring import plan_ring

BATCH = 4


def other(batch):
    """Another network for the same samples."""
    net = Network("other", batch)
    x = net.relu(net.conv(net.image(2, 6, 6), 3, 3))
    net.linear(net.flatten(net.max_pool(x, 2)), 3)
    return net.build()


def build_of(*loads, devices=3, seed=5):
    cluster = cluster_of(devices)
    models = [(load(1).name, load) for load in loads]
    plan = plan_ring(models, BATCH, cluster, array=(4, 4))
    return make_ring_build(plan, loads, cluster, seed=seed)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((40, 2, 6, 6)).astype(np.float32)
    labels = rng.integers(0, 3, 40)
    samples = Samples(images, labels)
    return Dataset(samples.some(slice(31)), samples.some(slice(31, None)))


def settings_of(count, epochs=2):
    return [Settings(epochs=epochs, seed=7, learning_rate=0.02 * (n + 1)) for n in range(count)]


def in_ring_order(trainer, build, model, epochs):
    """The mini-batches of a model, in the order in which it visits the devices."""
    devices = build.num_devices
    return [
        batch
        for epoch in range(epochs)
        for visit in range(devices)
        for batch in trainer.shards[(model + visit) % devices].batches(BATCH, 7, epoch)
    ]


@pytest.mark.parametrize(
    ("loads", "epochs"), [((tiny, other), 2), ((other, tiny, tiny, other), 1)], ids=["two", "four"]
)
def test_models_train_as_alone_on_the_shards_in_turn(loads, epochs, data, tmp_path):
    """Bit for bit; also of unlike networks, and of more models than devices."""
    build = build_of(*loads)
    trainer = RingTrainer(build, data, settings_of(len(loads), epochs), tmp_path)
    result = trainer.run(shuffled=epochs == 2)
    assert [each.network for each in result.models] == [load(1).name for load in loads]
    assert result.rounds == epochs * 3 * len(build.groups)
    for number, found in enumerate(result.models):
        model = number % 3
        alone = train_alone(
            build,
            number,
            trainer.settings[number],
            in_ring_order(trainer, build, model, epochs),
            trainer.steps_per_epoch,
        )
        assert alone.keys() == found.state.keys()
        assert any(name.endswith(".momentum") for name in alone)
        for name, value in alone.items():
            np.testing.assert_array_equal(found.state[name], value)
        assert 0 <= found.accuracy <= 1
        assert (found.shuffled_accuracy is None) == (epochs == 1)
    assert result.hop_cycles is None
    assert result.predicted_hop_cycles > 0


def test_an_interrupted_training_ends_with_the_same_bits(data, tmp_path):
    build = build_of(tiny, other, tiny, tiny)

    def trainer(folder, **more):
        return RingTrainer(build, data, settings_of(4, 1), tmp_path / folder, **more)

    def stop(done, total):
        if done in (2, 5):  # in the first group, and in the second
            raise KeyboardInterrupt

    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = trainer("whole").run()
    with pytest.raises(KeyboardInterrupt):
        trainer("cut", on_round=stop).run()
    again = trainer("cut", on_round=stop)
    assert again.resume() == 2
    with pytest.raises(KeyboardInterrupt):
        again.run()
    last = trainer("cut")
    assert last.resume() == 5
    result = last.run()
    for one, two in zip(whole.models, result.models, strict=True):
        for name, value in one.state.items():
            np.testing.assert_array_equal(two.state[name], value)
    lines = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "cut")]
    assert lines[0] == lines[1]
    with pytest.raises(UserError, match="other settings"):
        RingTrainer(build, data, settings_of(4, epochs=3), tmp_path / "cut").resume()
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        RingTrainer(build_of(tiny, tiny), data, settings_of(2), tmp_path / "cut").resume()


def test_a_training_that_diverges_ends(data, tmp_path):
    build = build_of(tiny, other)
    settings = [replace(each, learning_rate=1e6) for each in settings_of(2)]
    with pytest.raises(Diverged, match="in round"):
        RingTrainer(build, data, settings, tmp_path).run()


def test_shards_are_disjoint_and_equal(data):
    shards = shards_of(data.train, 3, 4)
    assert [len(each.labels) for each in shards] == [10, 10, 10]
    found = np.concatenate([each.images for each in shards])
    assert len(np.unique(found.reshape(30, -1), axis=0)) == 30
    with pytest.raises(UserError, match="each of 8 devices has only 3 of the 31"):
        shards_of(data.train, 8, 4)


RING = ("ring", "digits-cnn", "digits-cnn", "--board", "u280", "--array", "4x4", "--batch", "8")


def test_plan_on_the_command_line(cli):
    code, out, err = cli(*RING, "--devices", "4", "--epochs", "3", "--plan")
    assert code == 0, err
    assert "T = E S (v + x) = 3 x 4 x" in out
    assert "utilisation K/S = 2/4 = 50.0%" in out
    assert "(D/S) x sample = 359 x 132 = 47,388" in out
    code, out, err = cli(*RING, "--devices", "4", "--epochs", "3", "--plan", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["hop_bytes"] == 498_000
    assert found["rounds"] == 12
    assert not found["moves_less"]
    assert found["pays_from_shard_samples"] == 498_000 // 132 + 1


def test_a_plan_for_a_number_of_samples(cli, tmp_path):
    asked = (*RING, "--samples", "100000", "-o", tmp_path)
    code, out, err = cli(*asked, "--plan")
    assert code == 0, err
    assert "50,000 x 132" in out
    assert "it is where a wire carries less than (shard - model) / v" in out
    code, out, err = cli(*asked)
    assert (code, out) == (2, "")
    assert "use it with --plan" in err


def test_a_run_on_the_command_line(cli, tmp_path, monkeypatch):
    # Elaboration takes half a minute; the simulated ring has the real text.
    monkeypatch.setattr(core_verilog, "device_verilog", lambda core: "module top();")
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "few.npz",
        images=rng.random((20, 1, 8, 8), np.float32),
        labels=rng.integers(0, 10, 20),
    )
    asked = (*RING, "--data", tmp_path / "few.npz", "-o", tmp_path / "ring", "--json")
    code, out, err = cli(*asked, "--learning-rate", "0.01", "--learning-rate", "0.02")
    assert code == 0, err
    found = json.loads(out)
    assert found["run"]["rounds"] == 2
    assert found["run"]["hop_bytes"] == 2 * 2 * found["plan"]["hop_bytes"]
    cycles = found["plan"]["hop_s"] * found["run"]["clk_hz"]
    assert found["run"]["predicted_hop_cycles"] == pytest.approx(2 * cycles, rel=0.05)
    with np.load(tmp_path / "ring/models/1.npz") as kept:
        assert kept["conv1.weight"].dtype == np.float32
    assert len(list((tmp_path / "ring/devices").iterdir())) == 2
    code, out, err = cli(*asked, "--learning-rate", "0.01", "--resume")
    assert code == 2
    assert "other settings" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ring", "digits-cnn", "--board", "u280"), "a ring has 2 to 256 models, not 1"),
        (("ring",), "give a cluster file, or --board and --devices"),
        ((*RING, "--epochs", "0"), "0 is not in the range"),
        ((*RING, "--devices", "1"), "a ring needs at least 2 devices"),
        ((*RING, "--devices", "180"), "each of 180 devices has only 7 of the 1437"),
        ((*RING, "--learning-rate", "1", *3 * ("--learning-rate", "2")), "once for each of 2"),
        (("ring", "digits-cnn", "bert_base", "--board", "u280"), "a network with one output"),
        (("ring", "digits-cnn", "vgg-mini", "--board", "u280"), "vgg-mini takes samples of"),
        (("ring", "digits-cnn", "absent.onnx", "--board", "u280"), "there is no such file"),
        (("ring", "digits-cnn", "digit", "--board", "u280"), "no network 'digit'"),
        ((*RING, "--resume"), "no ring to resume"),
        ((*RING, "--data", "absent.npz"), "there is no such file"),
        ((*RING, "--micro-batches", "3"), "micro-batches"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(arguments, said, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*arguments)
    assert (code, out) == (2, ""), err
    assert said in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_other_folders_are_left_alone(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("kept")
    code, _, err = cli(*RING, "-o", tmp_path / "mine")
    assert code == 2
    assert "is there and is no ring" in err
    code, _, err = cli(*RING, "-o", tmp_path / "mine/file")
    assert code == 2
    assert "is no folder" in err
    assert (tmp_path / "mine/file").read_text() == "kept"


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
def test_simulated_devices_beside_the_model(data, tmp_path):
    """All rounds in RTL, with every byte of every memory compared after each round."""
    build = build_of(tiny, other)
    trainer = RingTrainer(
        build, data, settings_of(2, epochs=1), tmp_path, backend="sim", checks=True, threads=2
    )
    result = trainer.run()
    assert not result.difference
    # The host starts one device after the other, some cycles apart, which such short hops show.
    assert result.hop_cycles == pytest.approx(result.predicted_hop_cycles, abs=30 * result.rounds)
    assert result.visit_cycles > result.hop_cycles

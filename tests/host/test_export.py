"""Weights of runs go out in the module's names and come in again; what does not fit is named."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from run_cases import small_network

import fpgapipe
from fpgapipe.errors import FileError, UserError
from fpgapipe.files import remove_folder
from fpgapipe.host.build.build_parts import with_unread
from fpgapipe.host.cli.main import main
from fpgapipe.host.data.npz_file import npz_bytes
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.weights.parameters_file import read_parameters, source_tensors, with_weights

torch = pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("safetensors", reason="needs the export extra")
from torch import nn  # noqa: E402

from fpgapipe.network import graph_json  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    import exported_networks
    from bench_exports import FORMATS, LIMIT, checked
finally:
    sys.path.remove(str(BENCH))


@pytest.mark.parametrize("kind", ["residual", "gpt"])
def test_all_formats_out_and_in(tmp_path, kind):
    """A sample of bench/bench_exports.py: counters, a module used twice; tied weights, Conv1D."""
    found = checked(kind, tmp_path)["formats"]
    assert found.keys() == set(FORMATS)
    for suffix, each in found.items():
        assert each["equal"], suffix
        assert each["error"] < LIMIT, suffix


def imported(kind):
    torch.manual_seed(0)
    module, inputs = getattr(exported_networks, kind)(4)
    return module, from_torch((module, inputs), name=kind)


@pytest.mark.parametrize("kind", [each.__name__ for each in exported_networks.KINDS])
def test_the_state_is_that_of_the_module(tmp_path, kind):
    """All names, in order, with all bits; and into the network again."""
    module, graph = imported(kind)
    state = module.state_dict()
    tensors = source_tensors(graph, graph.values, 0)
    assert list(tensors) == list(state)
    for name, value in tensors.items():
        assert value.shape == tuple(state[name].shape)
        np.testing.assert_array_equal(value, state[name].numpy(), err_msg=name)
    torch.save(state, tmp_path / "w.pt")
    found = with_weights(tmp_path / "w.pt", graph)
    assert found.values.keys() == graph.values.keys()
    for name, value in graph.values.items():
        np.testing.assert_array_equal(found.values[name], value)


def test_counters_are_those_of_pytorch(tmp_path):
    """A normalisation that is used twice counts each micro-batch twice."""
    module, graph = imported("residual")
    module.train()
    for _ in range(3):
        module(torch.zeros(4, 1, 8, 8))
    tensors = source_tensors(graph, graph.values, 3)
    counters = [name for name in tensors if name.endswith("num_batches_tracked")]
    assert len(counters) == 2
    for name in counters:
        assert tensors[name] == module.state_dict()[name]
        assert tensors[name].dtype == np.int64


def test_counters_of_a_file_go_on(tmp_path):
    module, graph = imported("cnn")
    module(torch.ones(4, 1, 8, 8))
    torch.save(module.state_dict(), tmp_path / "w.pt")
    found = with_weights(tmp_path / "w.pt", graph)
    tensors = source_tensors(found, found.values, 10)
    assert tensors["1.num_batches_tracked"] == 11


def test_what_the_import_has_computed_with_must_be_the_same(tmp_path):
    module, graph = imported("auxiliary")
    state = module.state_dict()
    state["unused.weight"] = torch.full_like(state["unused.weight"], 3.0)
    torch.save(state, tmp_path / "w.pt")
    found = with_weights(tmp_path / "w.pt", graph)
    assert (source_tensors(found, found.values, 0)["unused.weight"] == 3).all()
    state["mean"] = state["mean"] + 1
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(UserError) as error:
        read_parameters(tmp_path / "w.pt", graph)
    assert str(error.value) == (
        f"{tmp_path / 'w.pt'}: mean has other values than those with which auxiliary was "
        "imported; import it with these"
    )
    state["mean"] = torch.zeros(3)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"mean must be float32 of shape \(64,\), not float32 of"):
        read_parameters(tmp_path / "w.pt", graph)


def test_one_name_of_tied_weights_is_enough(tmp_path):
    module, graph = imported("gpt")
    state = module.state_dict()
    del state["lm_head.weight"]
    torch.save(state, tmp_path / "w.pt")
    found = read_parameters(tmp_path / "w.pt", graph)
    np.testing.assert_array_equal(found["wte.weight"], state["wte.weight"].numpy())
    state["lm_head.weight"] = state["wte.weight"] + 1
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"wte.weight and lm_head.weight are one, and must be"):
        read_parameters(tmp_path / "w.pt", graph)


def test_a_trunk_without_the_name_that_the_whole_gives_it(tmp_path):
    """Hugging Face's files of a trunk, of which a model with a head puts a name in front."""

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6))

        def forward(self, x):
            return self.transformer(x)

    module = Whole()
    graph = from_torch((module, torch.zeros(2, 4)), name="whole")
    torch.save(module.transformer.state_dict(), tmp_path / "w.pt")
    found = read_parameters(tmp_path / "w.pt", graph)
    for name, value in module.state_dict().items():
        np.testing.assert_array_equal(found[name], value.numpy())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A build of the project's own description with a run of the model."""
    folder = tmp_path_factory.mktemp("trained") / "small"
    boards = fpgapipe.chain_of(fpgapipe.load_board("u280"), 2)
    fpgapipe.build(
        small_network, boards, folder, batch=8, micro_batches=2, array=(8, 8), hardware=False
    )
    fpgapipe.run(folder, "model", data="random", steps=4, checkpoint_every=2, validates=False)
    return folder


def test_a_network_of_layers_has_their_names(trained, tmp_path):
    file = tmp_path / "w.npz"
    found = fpgapipe.export(trained, file)
    state = fpgapipe.read_checkpoint(found.checkpoint).state
    with np.load(file) as archive:
        assert sorted(archive) == sorted(name for name in state if ".momentum" not in name)
        for name in archive:
            np.testing.assert_array_equal(archive[name], state[name])
    again = read_parameters(file, small_network())
    assert again.keys() == set(np.load(file))


def test_of_a_step_and_of_a_folder_of_a_run(trained, tmp_path):
    run = trained / "run" / "model"
    first = fpgapipe.export(run, tmp_path / "a.npz", step=2)
    assert (first.step, first.checkpoint.name) == (2, "step-00000002.ckpt")
    last = fpgapipe.export(trained, tmp_path / "b.npz", backend="model")
    assert last.step == 4
    with np.load(tmp_path / "a.npz") as one, np.load(tmp_path / "b.npz") as other:
        assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_the_command(trained, tmp_path, capsys):
    file = tmp_path / "w.safetensors"
    assert main(["export", str(trained), "-o", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["network"], found["bytes"]) == (4, "small", file.stat().st_size)
    assert main(["export", str(trained), "-o", str(file)]) == 0
    assert capsys.readouterr().out.startswith("small after 4 mini-batches: ")


def refused(capsys, *words):
    assert main(["export", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_what_is_refused(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = ("-o", "w.npz")
    assert "there are those after 2, 4" in refused(capsys, trained, "--step", "3", *out)
    assert "has no run of torch with a checkpoint; it has model" in refused(
        capsys, trained, "--backend", "torch", *out
    )
    assert "is not there" in refused(capsys, "nowhere", *out)
    assert "neither a build nor the folder of a run" in refused(capsys, tmp_path, *out)
    assert "must end in one of .safetensors, .npz" in refused(capsys, trained, "-o", "w.h5")
    assert "--network is for .onnx only" in refused(capsys, trained, "--network", "x:y", *out)
    assert "name the ONNX file or the module:function" in refused(capsys, trained, "-o", "w.onnx")
    assert "neither an ONNX file nor a PyTorch module" in refused(
        capsys, trained, "-o", "w.onnx", "--network", "run_cases:small_network"
    )
    assert "is not what was built: it has conv1.weight of shape (32, 1, 3, 3), not" in refused(
        capsys, trained, "-o", "w.onnx", "--network", "digits-cnn"
    )
    assert "is a file of the build" in refused(capsys, trained, "-o", trained / "plan.json")
    assert not list(tmp_path.iterdir())


def test_runs_of_several_backends(trained, tmp_path, capsys):
    fpgapipe.run(trained, "torch", data="random", steps=1, validates=False)
    try:
        assert "has runs of model, torch; say which with --backend, or name " in refused(
            capsys, trained, "-o", tmp_path / "w.npz"
        )
        fpgapipe.export(trained, tmp_path / "w.npz", backend="torch")
    finally:
        remove_folder(trained / "run" / "torch")


def test_causal_masks_in_a_file_are_left_out(tmp_path):
    """As in the file of GPT-2 that Hugging Face serves."""
    _, graph = imported("gpt")
    path = tmp_path / "w.npz"
    mask = {
        "attn.bias": np.tri(8, dtype=np.uint8)[None, None],
        "attn.masked_bias": np.float32(-1e4),
    }
    path.write_bytes(npz_bytes({**source_tensors(graph, graph.values, 0), **mask}))
    found = read_parameters(path, graph)
    for name, value in graph.values.items():
        np.testing.assert_array_equal(found[name], value, strict=True)
    mask["attn.bias"][0, 0, 0, 1] = 1
    path.write_bytes(npz_bytes({**source_tensors(graph, graph.values, 0), **mask}))
    with pytest.raises(FileError, match=r"has 'attn\.bias', which gpt has not"):
        read_parameters(path, graph)


def test_a_build_for_inference_from_a_run(trained, tmp_path):
    """It has the network of the run without its name, and the weights of the checkpoint."""
    boards = fpgapipe.chain_of(fpgapipe.load_board("u280"), 1)
    options = {
        "batch": 8, "micro_batches": 2, "array": (8, 8), "hardware": False, "verify": False,
        "options": fpgapipe.StepOptions(train=False),
    }  # fmt: skip
    folder = tmp_path / "infer"
    fpgapipe.build(None, boards, folder, source=trained, **options)
    with pytest.raises(UserError, match=r"infer is a build for inference, which is not trained$"):
        fpgapipe.build(None, boards, tmp_path / "more", source=folder, **options)
    build = fpgapipe.open_build(folder)
    exported = fpgapipe.export(trained, tmp_path / "w.npz")
    state = fpgapipe.read_checkpoint(exported.checkpoint).state
    assert build.graph.batch == 4
    assert build.parameters
    for name, value in build.parameters.items():
        np.testing.assert_array_equal(value, state[name], strict=True)
    again = tmp_path / "again"
    fpgapipe.build(small_network, boards, again, parameters=str(tmp_path / "w.npz"), **options)
    logits = []
    for each in (folder, again):
        ran = fpgapipe.run(each, "model", data="random", steps=1)
        with np.load(ran.summary.folder / "logits.npz") as found:
            logits.append(found["logits"])
    np.testing.assert_array_equal(*logits, strict=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mode train", "--from makes builds for inference: take --mode infer"),
        ("--mode infer --network lenet5", "takes the network of a run; leave --network out"),
        ("--mode infer --parameters x.npz", "takes the weights of a run; leave --parameters out"),
        ("--mode infer -o OWN", "has the run whose weights are taken; name another folder"),
    ],
)
def test_what_a_build_from_a_run_refuses(trained, words, message, capsys):
    given = [str(trained) if word == "OWN" else word for word in words.split()]
    assert main(["build", "--from", str(trained), "--board", "u280", *given]) == 2
    assert message in capsys.readouterr().err


def test_a_build_that_was_not_run(tmp_path, capsys):
    folder = tmp_path / "small"
    boards = fpgapipe.chain_of(fpgapipe.load_board("u280"), 1)
    fpgapipe.build(small_network, boards, folder, batch=4, array=(8, 8), hardware=False)
    assert f"has no checkpoint; 'fpgapipe run {folder}' makes one" in refused(
        capsys, folder, "-o", tmp_path / "w.npz"
    )


def test_a_checkpoint_of_another_build_or_damaged(trained, tmp_path, capsys):
    path = trained / "run/model/checkpoints/step-00000004.ckpt"
    good = path.read_bytes()
    out = ("-o", tmp_path / "w.npz")
    try:
        path.write_bytes(good[:-1])
        assert "step-00000004.ckpt is damaged" in refused(capsys, trained, "--step", 4, *out)
        assert fpgapipe.export(trained, tmp_path / "w.npz").step == 2  # with a warning
        found = Checkpoint.read(trained / "run/model/checkpoints/step-00000002.ckpt")
        Checkpoint(4, "other", found.settings, found.state).write(path)
        assert "is of another build" in refused(capsys, trained, "--step", 4, *out)
    finally:
        path.write_bytes(good)


def test_module_weights_in_by_the_command_line(tmp_path, monkeypatch, capsys):
    """A state that does not fit is refused by name before anything is built."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(BENCH))
    module, _ = exported_networks.cnn(4)
    state = module.state_dict()
    state["7.weight"] = state.pop("5.weight")
    torch.save(state, "w.pt")
    words = ["build", "--network", "exported_networks:cnn", "--board", "u280", "--batch", "4"]
    words += ["--array", "8x8", "--parameters", "w.pt", "-o", "built", "--devices", "1"]
    assert main(words) == 2
    assert "has '7.weight', which cnn has not; did you mean" in capsys.readouterr().err
    assert not (tmp_path / "built").exists()


def test_what_a_build_keeps_for_the_module(tmp_path):
    """Its file comes with the build; one that claims more, or has other names, is refused."""
    _, graph = imported("cnn")
    path = tmp_path / "unread.npz"
    path.write_bytes(npz_bytes(graph.state.unread))
    found = with_unread(graph_json.from_json(graph_json.to_json(graph)), path)
    assert found.state == graph.state
    assert found.state.unread.keys() == graph.state.unread.keys()
    np.savez_compressed(path, **{"1.num_batches_tracked": np.zeros(1 << 16)})
    with pytest.raises(FileError, match=r"claims more values than it holds"):
        with_unread(graph, path)
    for name in ("other", "0.weight"):
        path.write_bytes(npz_bytes({name: np.zeros(3)}))
        with pytest.raises(FileError, match=f"has {name}, which cnn keeps in no such file"):
            with_unread(graph, path)

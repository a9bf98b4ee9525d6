"""Files of tensors: what is written is read back, and what is damaged or foreign is refused."""

import os
import pickle

import numpy as np
import pytest
from odd_files import ODD

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.weights.tensor_files import TENSOR_FORMATS, open_tensors, write_tensors

torch = pytest.importorskip("torch", reason="needs the torch extra")
save_file = pytest.importorskip("safetensors.torch", reason="needs the export extra").save_file

VALUES = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not in the order of its memory
    "scalar": np.asarray(2.5, np.float32),
    "counter": np.asarray(7, np.int64),
    "mask": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
    "file": np.ones(2, np.float16),  # a name that numpy.savez has itself
}


@pytest.mark.parametrize("suffix", TENSOR_FORMATS)
def test_what_is_written_is_read(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    write_tensors(path, VALUES)
    before = path.read_bytes()
    with open_tensors(path) as found:
        assert found.keys() == VALUES.keys()
        for name, value in VALUES.items():
            assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
            np.testing.assert_array_equal(found[name].read(), value)
    write_tensors(path, VALUES)
    assert path.read_bytes() == before


def test_libraries_read_them(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file

    write_tensors(tmp_path / "w.safetensors", VALUES)
    write_tensors(tmp_path / "w.npz", VALUES)
    write_tensors(tmp_path / "w.pt", VALUES)
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    with np.load(tmp_path / "w.npz") as archive:
        assert archive["weight"].tolist() == VALUES["weight"].tolist()
    for found in (
        load_file(tmp_path / "w.safetensors"),
        torch.load(tmp_path / "w.pt", weights_only=True),
    ):
        assert {name: value.tolist() for name, value in found.items()} == {
            name: value.tolist() for name, value in VALUES.items()
        }


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_short_floats_are_read_as_they_are(tmp_path, suffix):
    value = torch.tensor([1.0, -3.140625, 1e-30, float("inf")], dtype=torch.bfloat16)
    path = tmp_path / f"w{suffix}"
    save_file({"w": value}, path) if suffix == ".safetensors" else torch.save({"w": value}, path)
    with open_tensors(path) as found:
        assert found["w"].dtype == np.float32
        np.testing.assert_array_equal(found["w"].read(), value.float().numpy())


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
@pytest.mark.parametrize("kept", [0, 7, 0.5, 0.97])
def test_a_file_that_is_cut_short_is_refused(tmp_path, suffix, kept):
    path = tmp_path / f"w{suffix}"
    write_tensors(path, {"w": np.random.default_rng(0).standard_normal((64, 64), np.float32)})
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    with pytest.raises(FileError) as error, open_tensors(path) as found:
        found["w"].read()
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("suffix", TENSOR_FORMATS)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_such_file(tmp_path, suffix, kind):
    ODD[kind](tmp_path / f"w{suffix}")
    with pytest.raises(UserError), open_tensors(tmp_path / f"w{suffix}"):
        pass


class Harmful:
    """An object whose unpickling runs code."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"w": x}, lambda x: {"state_dict": x}])
def test_nothing_in_them_runs(tmp_path, monkeypatch, wrap):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.pt"
    for save in (torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))):
        save(wrap(Harmful()), path)
        with pytest.raises(FileError, match="cannot be read as tensors alone"), open_tensors(path):
            pass
    assert not (tmp_path / "unpickled").exists()
    torch.save(torch.nn.Linear(2, 2), path)  # a whole module
    with pytest.raises(FileError, match="cannot be read as tensors alone"), open_tensors(path):
        pass


def test_a_pytorch_in_which_files_can_run_code(tmp_path, monkeypatch):
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt")
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.5.1+cpu"))
    with (
        pytest.raises(UserError, match=r"needs torch 2.6 or newer, since a file can run code in"),
        open_tensors(tmp_path / "w.pt"),
    ):
        pass
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.10.0"))
    with open_tensors(tmp_path / "w.pt") as found:
        assert found.keys() == {"w"}


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_tensors_beside_what_a_training_script_keeps(tmp_path, key):
    torch.save({"epoch": 3, key: {"w": torch.ones(2)}, "optimizer": {"lr": 0.1}}, tmp_path / "w.pt")
    with open_tensors(tmp_path / "w.pt") as found:
        assert found.keys() == {"w"}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([1, 2], "holds no tensors by name"),
        ({}, "holds no tensors by name"),
        ({"w": torch.ones(1), "epoch": 3}, "holds int under 'epoch', not a tensor under a name"),
        (
            {"w": torch.ones(2).to(torch.float8_e4m3fn)},
            "tensor w has elements of type torch.float",
        ),
    ],
)
def test_other_things_in_a_pytorch_file_are_named(tmp_path, value, fault):
    torch.save(value, tmp_path / "w.pt")
    with pytest.raises(FileError) as error, open_tensors(tmp_path / "w.pt"):
        pass
    assert fault in str(error.value)


def test_elements_that_are_not_read_are_named(tmp_path):
    save_file({"w": torch.ones(2).to(torch.float8_e4m3fn)}, tmp_path / "w.safetensors")
    with (
        pytest.raises(FileError, match="tensor w has elements of type F8_E4M3, which are not read"),
        open_tensors(tmp_path / "w.safetensors"),
    ):
        pass


def test_complex_numbers_have_another_format(tmp_path):
    value = {"w": np.ones(2, np.complex64)}
    with pytest.raises(UserError, match=r"safetensors has no complex numbers, which w has"):
        write_tensors(tmp_path / "w.safetensors", value)
    write_tensors(tmp_path / "w.pt", value)
    with open_tensors(tmp_path / "w.pt") as found:
        assert found["w"].dtype == np.complex64


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_ctrl_c_while_it_is_written_leaves_the_file_before(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"w{suffix}"
    write_tensors(path, VALUES)
    before = path.read_bytes()

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr("fpgapipe.files.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(path, {"w": np.zeros(3, np.float32)})
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]

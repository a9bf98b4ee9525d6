"""Parameters given in a file: as strictly read as samples."""

import io
import zipfile

import numpy as np
import pytest
from odd_files import ODD
from run_cases import small_network

from fpgapipe.errors import FileError
from fpgapipe.host.weights.parameters_file import read_parameters
from fpgapipe.network.initial_values import initial_parameters

GRAPH = small_network()
GOOD = initial_parameters(GRAPH, 0)
NAME = "linear1.bias"


def refused(path) -> str:
    with pytest.raises(FileError) as caught:
        read_parameters(path, GRAPH)
    return str(caught.value).removeprefix(f"{path}: ")


def test_they_are_read(tmp_path):
    counter = {"batch_norm1.num_batches_tracked": np.int64(3)}  # as PyTorch's modules have
    np.savez_compressed(tmp_path / "p.NPZ", **GOOD, **counter)
    (tmp_path / "p.NPZ.npz").rename(tmp_path / "p.NPZ")
    found = read_parameters(tmp_path / "p.NPZ", GRAPH)
    assert found.keys() == GOOD.keys()
    assert all(np.array_equal(found[name], GOOD[name]) for name in GOOD)


def test_what_the_network_has_not_is_named(tmp_path):
    np.savez(tmp_path / "p.npz", **GOOD, **{"linear1.bais": np.zeros(3), "more": np.zeros(3)})
    assert refused(tmp_path / "p.npz") == (
        "has 'linear1.bais', which small has not; did you mean 'linear1.bias'?\n"
        f"{tmp_path / 'p.npz'}: has 'more', which small has not"
    )


@pytest.mark.parametrize("before", ["module.", "_orig_mod."])
def test_names_behind_those_of_a_wrapper(tmp_path, before):
    np.savez(tmp_path / "p.npz", **{before + name: value for name, value in GOOD.items()})
    found = read_parameters(tmp_path / "p.npz", GRAPH)
    assert all(np.array_equal(found[name], GOOD[name]) for name in GOOD)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (np.zeros(11, "f4"), "must be floating-point numbers of shape (10,), not float32 of shape"),
        (np.zeros(10, "i8"), "must be floating-point numbers of shape (10,), not int64 of shape"),
        (np.zeros(10, "c8"), "must be floating-point numbers of shape (10,), not complex64 of"),
        (np.full(10, {}), "holds Python objects (pickles), which are never read; save numbers"),
        (np.full(10, np.nan, "f4"), "must be finite in FP32"),
        (np.full(10, 1e39), "must be finite in FP32"),
        (None, "lacks parameter linear1.bias, floating-point numbers of shape (10,)"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, value, fault):
    given = GOOD | {NAME: value}
    np.savez(tmp_path / "p.npz", **{key: each for key, each in given.items() if each is not None})
    assert fault in refused(tmp_path / "p.npz")
    assert NAME in refused(tmp_path / "p.npz")


def test_a_header_that_claims_terabytes_takes_no_memory(tmp_path):
    np.savez(tmp_path / "p.npz", **{key: each for key, each in GOOD.items() if key != NAME})
    header = io.BytesIO()
    shape = (1 << 42,)
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(tmp_path / "p.npz", "a") as archive:
        archive.writestr(f"{NAME}.npy", header.getvalue())
    assert refused(tmp_path / "p.npz").endswith(f"not float32 of shape {shape}")


def test_a_name_that_stands_for_two_arrays(tmp_path):
    np.savez(tmp_path / "p.npz", **GOOD)
    with zipfile.ZipFile(tmp_path / "p.npz", "a") as archive:
        archive.writestr(NAME, b"")
    assert refused(tmp_path / "p.npz") == f"has array {NAME} twice"


def test_a_list_of_arrays_that_claims_gigabytes(tmp_path):
    path = tmp_path / "p.npz"
    with path.open("wb") as file:
        file.truncate(3 << 30)
        file.seek(0, io.SEEK_END)
        # The end of a zip file: of how many entries and bytes its list is, and where it begins.
        counts = (0xFFF0).to_bytes(2, "little") * 2
        size = (0xB0000000).to_bytes(4, "little")
        file.write(b"PK\5\6" + bytes(4) + counts + size + bytes(4) + bytes(2))
    assert refused(path) == "cannot be read as .npz: its list of arrays is too long"


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["p.npz", "p.ckpt"])
def test_what_is_no_file_of_parameters(tmp_path, kind, name):
    from fpgapipe.errors import UserError

    ODD[kind](tmp_path / name)
    with pytest.raises(UserError):
        read_parameters(tmp_path / name, GRAPH)


def test_a_parameter_that_has_several_names(tmp_path):
    from dataclasses import replace

    graph = replace(GRAPH, aliases={"head.bias": NAME})
    others = {name: value for name, value in GOOD.items() if name != NAME}
    for own in (
        {NAME: GOOD[NAME]},
        {"head.bias": GOOD[NAME]},
        dict.fromkeys((NAME, "head.bias"), GOOD[NAME]),
    ):
        np.savez(tmp_path / "p.npz", **others, **own)
        found = read_parameters(tmp_path / "p.npz", graph)
        assert found.keys() == GOOD.keys()
        np.testing.assert_array_equal(found[NAME], GOOD[NAME])
    np.savez(tmp_path / "p.npz", **GOOD, **{"head.bias": GOOD[NAME] + 1})
    with pytest.raises(
        FileError, match=f"parameters {NAME} and head.bias are one, and must be equal"
    ):
        read_parameters(tmp_path / "p.npz", graph)
    np.savez(tmp_path / "p.npz", **others)
    with pytest.raises(FileError, match=f"lacks parameter {NAME}"):
        read_parameters(tmp_path / "p.npz", graph)

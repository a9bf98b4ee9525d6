"""A trained network is quantised with samples when it is built."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("sklearn", reason="needs the data extra")

import torch

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main
from fpgapipe.host.data.data import load_data
from fpgapipe.host.make.networks import with_integers, with_parameters
from fpgapipe.host.runtime.evaluation import Inference
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.zoo import built_in

CORE = CoreSpec(16, 16, scratchpad=ScratchpadSpec(4, 1 << 17), vector=VectorSpec())


def digits(batch):
    return built_in("digits-cnn", batch)


def saved(tmp_path, seed=0):
    """A file of parameters, which need not be trained to be compared."""
    path = tmp_path / "parameters.npz"
    np.savez(path, **initial_parameters(digits(1), seed))
    return str(path)


def test_int8_network_predicts_as_the_other(tmp_path):
    load = with_parameters(digits, saved(tmp_path), 36)
    graph = with_integers(load, "digits", 36)(36)
    samples = load_data("digits", graph).validation.some(slice(0, 72))
    exact = load(36)
    predicted = samples.labels
    right, count = Inference(graph, CORE, samples)(graph.values)
    assert count == len(predicted)
    # Without training, both networks find the same labels, by chance or not.
    other, _ = Inference(exact, CORE, samples)(exact.values)
    assert abs(right - other) <= 3
    assert {layer.op for layer in graph.layers.values()} >= {"quantise", "rescale", "dequantise"}


def test_scales_of_a_percentile(tmp_path):
    """Nearly all elements are within the scales, whose integers are finer; others saturate."""
    load = with_parameters(digits, saved(tmp_path), 36)
    images = load_data("random", digits(36)).train.images[:504]
    scales = []
    for percentile in (100.0, 90.0):
        graph = with_integers(load, "random", 36, percentile)(36)
        (quantise,) = (each for each in graph.layers.values() if each.op == "quantise")
        scale = np.float32(quantise.operator.scale)
        scales.append(scale)
        values = np.linspace(-9, 9, 36 * 64, dtype=np.float32).reshape(36, 1, 8, 8)
        weights = {name: torch.from_numpy(np.asarray(each)) for name, each in graph.values.items()}
        results = forward(graph, weights, {"input": torch.from_numpy(values)})
        found = results[quantise.name].numpy()
        least, most = quantise.operator.range
        np.testing.assert_array_equal(found, np.clip(np.rint(values / scale), least, most))
        assert (found == most).any()
    assert scales[0] == pytest.approx(np.abs(images).max() / 127, rel=1e-6)
    parts = [np.percentile(np.abs(images[first : first + 36]), 90) for first in range(0, 504, 36)]
    assert scales[1] == pytest.approx(max(parts) / 127, rel=1e-6)
    assert scales[1] < scales[0]


def test_what_is_refused(tmp_path, capsys):
    words = ["build", "--board", "u280", "--mode", "infer", "--int8-percentile", "99"]
    assert main([*words, "-o", str(tmp_path / "b")]) == 2
    assert "--int8-percentile is about the scales of --int8 DATA" in capsys.readouterr().err
    assert main(["build", "--board", "u280", "--int8", "digits", "-o", str(tmp_path / "b")]) == 2
    assert "--int8 builds networks for inference: it needs --mode infer" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"^digits-cnn must be trained before it is quantised"):
        with_integers(digits, "digits", 4)


@pytest.mark.slow
def test_build_and_run(tmp_path):
    """A pipeline of two devices, built, opened again and run in the model."""
    folder = tmp_path / "build"
    words = ["build", "--board", "u280", "--devices", "2", "--array", "8x8", "--batch", "8"]
    words += ["--mode", "infer", "--parameters", saved(tmp_path), "--int8", "digits"]
    assert main([*words, "-o", str(folder)]) == 0
    assert open_build(folder).graph.name == "digits-cnn-int8"
    assert main(["run", str(folder), "--backend", "model", "--steps", "2"]) == 0

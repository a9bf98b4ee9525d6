"""Parameters without weight decay, and frozen ones, which take no memory in vain."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from step_cases import every_operator
from test_data_parallel import shared_batch
from test_embedding_unit import language
from test_pipeline import CORE, COUNT, ORDERS, SAMPLES, batch_of, cut, on_one, on_several

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.lowering.program.late_updates import late_options
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.graph_json import from_json, to_json
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.parameter_groups import freeze, small_parameters

WEIGHTS = StepOptions(optimiser="adamw", decays="weights")
SCALARS = {"learning_rate": 0.01, "weight_decay": 0.5}


def step_of(graph, options, num_stages=1):
    """Weights before a step and after it, and gradients."""
    from fpgapipe.lowering.lower import build_pipeline
    from fpgapipe.partition.schedule.schedule_kinds import make_schedule

    schedule = make_schedule("1f1b-as", num_stages, COUNT)
    layers = cut(graph, num_stages)
    pipeline = build_pipeline(graph, [CORE] * num_stages, layers, schedule, options=options)
    before = initial_parameters(graph, 0)
    with ModelBackend(pipeline, before) as backend:
        backend.step(*batch_of(graph), scalar_bits(**SCALARS))
        return before, backend.parameters(), backend.parameters(".gradient")


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("network", [every_operator, language])
def test_decay_is_that_of_pytorchs_groups(network, optimiser):
    graph = network(SAMPLES)
    options = StepOptions(optimiser=optimiser, decays="weights", undecayed=("linear1*",))
    if network is language:
        options = replace(options, undecayed=())
    before, after, gradients = step_of(graph, options)
    small = options.without_decay(graph)
    weights = {name: torch.tensor(before[name], requires_grad=True) for name in gradients}
    assert 0 < len(small) < len(weights)
    for name, weight in weights.items():
        weight.grad = torch.tensor(gradients[name])
    groups = [
        {"params": [weights[n] for n in weights if (n in small) == small_ones], "weight_decay": d}
        for small_ones, d in ((False, 0.5), (True, 0.0))
    ]
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    more = {"momentum": 0.9} if optimiser == "sgd" else {}
    made[optimiser](groups, lr=0.01, **more).step()
    for name, weight in weights.items():
        np.testing.assert_allclose(
            after[name], weight.detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )


def test_what_decays():
    graph = every_operator(SAMPLES)
    small = small_parameters(graph)
    assert {"conv1.bias", "batch_norm1.weight", "batch_norm1.bias", "linear1.bias"} <= small
    assert not {"conv1.weight", "linear1.weight", "batch_norm1.running_mean"} & small
    # A table that the head shares is an embedding, and so are positions.
    found = small_parameters(language(SAMPLES))
    assert {"table.weight", "places.value"} <= found
    with pytest.raises(NetworkError, match=r"^no learned parameter of every operator matches 'x'"):
        StepOptions(undecayed=("x",)).without_decay(graph)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_groups_have_the_bits_of_one_device(clip_norm):
    graph, options = every_operator(SAMPLES), replace(WEIGHTS, clip_norm=clip_norm)
    expected = on_one(graph, options)
    _, left, found = on_several(graph, cut(graph, 3), "1f1b-as", ORDERS["any"], options)
    assert left == [0] * 3
    assert found.pop("outcome") == expected.pop("outcome")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_groups_are_summed_by_devices_that_share_the_samples():
    graph = every_operator(SAMPLES)
    inputs, labels = random_batch(graph, 0, 2)
    pipeline = shared_batch(graph, 2, 2, WEIGHTS)
    reference = TorchBackend(
        graph, initial_parameters(graph, 0), num_microbatches=2, options=WEIGHTS,
        precision="mxint8", device="cpu",
    )  # fmt: skip
    with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
        backend.step(inputs, labels, scalar_bits(**SCALARS))
        reference.step(inputs, labels, scalar_bits(**SCALARS))
        expected, before = reference.parameters(), initial_parameters(graph, 0)
        for name, value in backend.parameters().items():
            if ".running_" not in name:
                moved = np.linalg.norm(expected[name] - before[name])
                assert np.linalg.norm(value - expected[name]) < 0.02 * moved, name


def test_late_updates_have_one_group():
    for options in (replace(WEIGHTS, optimiser="sgd"), StepOptions(undecayed=("conv1.bias",))):
        with pytest.raises(NotImplementedError, match="and all of them decay"):
            late_options(options)


def test_frozen_parameters_have_no_gradient_and_no_moments():
    graph = every_operator(SAMPLES)
    frozen = freeze(graph, ("conv*", "batch_norm1.*"))
    before, after, gradients = step_of(frozen, StepOptions(optimiser="adam"))
    names = {name for name in before if name.startswith(("conv", "batch_norm1."))}
    assert names
    assert not names & gradients.keys()
    _, free, all_gradients = step_of(graph, StepOptions(optimiser="adam"))
    for name, value in after.items():
        if name in names and ".running_" not in name:
            np.testing.assert_array_equal(value, before[name], err_msg=name)
            assert (free[name] != value).any()
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, all_gradients[name], err_msg=name)
    sizes = {}
    for each in (graph, frozen):
        program = build_step(each, CORE, options=StepOptions(optimiser="adam"))
        sizes[each is frozen] = program.account
        kinds = [name for name in program.places if name.endswith((".gradient", ".square"))]
        if each is frozen:
            assert not any(name.startswith(("conv", "batch_norm1.")) for name in kinds)
    fewer = {what: sizes[False][what] - sizes[True].get(what, 0) for what in sizes[False]}
    frozen_bytes = 4 * sum(before[name].size for name in names if ".running_" not in name)
    assert sum(fewer.values()) >= 3 * frozen_bytes  # gradients and two moments
    again = from_json(to_json(frozen))
    assert freeze(graph, ("conv*", "batch_norm1.*")).totals == again.totals
    assert again.totals.parameters < graph.totals.parameters


def test_layers_before_all_that_learn_have_no_backward_pass():
    """A frozen beginning costs its forward pass alone."""
    graph = every_operator(SAMPLES)
    frozen = freeze(graph, ("conv1.*", "conv2.*"))
    program = build_step(frozen, CORE)
    first = ("conv1", "max_pool1", "conv2")
    names = {each.name for each in program.kernels if each.name.startswith(first)}
    assert names == {"conv1.forward", "conv1.bias", "max_pool1", "conv2.forward"}
    free = {each.name for each in build_step(graph, CORE).kernels if each.name.startswith(first)}
    assert names < free


def test_freezing_is_checked():
    graph = every_operator(SAMPLES)
    with pytest.raises(
        NetworkError, match=r"^no learned parameter of every operator matches 'y\*'"
    ):
        freeze(graph, ("y*",))
    with pytest.raises(
        NetworkError, match=r"^\* matches all learned parameters of every operator$"
    ):
        freeze(graph, ("*",))

"""Continuations of prompts: what is chosen, what a pass reads, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import fpgapipe
from fpgapipe.host.cli.main import main
from fpgapipe.host.predict.causality import check_causal
from fpgapipe.host.predict.generate import drawn
from fpgapipe.host.predict.generated import Generated
from fpgapipe.host.predict.opening import open_weights
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.zoo.layers import Network
from fpgapipe.network.zoo.recurrent import lstm_language_model
from fpgapipe.network.zoo.transformer import Sizes, gpt

pytest.importorskip("torch", reason="needs the torch extra")

CYCLE = "stream"
"""The text that the networks learn, again and again; each of its characters is there once."""

CONTEXT = 8


def small_gpt(batch):
    """A GPT with dropout, which evaluation leaves out."""
    sizes = Sizes(features=16, heads=2, blocks=1, dropout=0.1)
    return gpt("small-gpt", batch, sizes, vocabulary=128, positions=CONTEXT)


def small_lstm(batch):
    return lstm_language_model("small-lstm", batch, characters=128, features=16, positions=CONTEXT)


def attentive(batch):
    """Attention to all positions, also later ones."""
    net = Network("attentive", batch)
    x = net.embedding(net.tokens("tokens", CONTEXT), 32, 16)
    scores = net.softmax(net.matmul(x, net.transpose(x, 0, 2, 1)))
    net.linear(net.plus(x, net.matmul(scores, x)), 32)
    return net.build()


def in_pairs(batch):
    """The first position of each pair sees the second, which sees no later one."""
    net = Network("pairs", batch)
    x = net.embedding(net.tokens("tokens", CONTEXT), 32, 16)
    x = net.linear(net.reshape(x, batch, CONTEXT // 2, 32), 32)
    net.linear(net.reshape(x, batch, CONTEXT, 16), 32)
    return net.build()


def classifier(batch):
    """One class for each row of tokens."""
    net = Network("classifier", batch)
    net.linear(net.flatten(net.embedding(net.tokens("tokens", CONTEXT), 16, 4)), 3)
    return net.build()


def build(network, folder, **options):
    boards = fpgapipe.chain_of(fpgapipe.load_board("u280"), 1)
    options = {"micro_batches": 1, "array": (4, 4), "batch": 2, "hardware": False, **options}
    fpgapipe.build(network, boards, folder, **options)


@pytest.fixture(scope="module", params=[small_gpt, small_lstm], ids=["gpt", "lstm"])
def trained(request, tmp_path_factory):
    """A build that has learned `CYCLE`."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "cycle.txt").write_text(CYCLE * 100)
    adam = fpgapipe.StepOptions(optimiser="adam")
    build(request.param, folder / "out", batch=8, options=adam)
    fpgapipe.run(
        folder / "out", "model", data=str(folder / "cycle.txt"), steps=300, learning_rate=0.05,
        validates=False,
    )  # fmt: skip
    return folder / "out"


@pytest.fixture(scope="module")
def of_numbers(tmp_path_factory):
    """A build that was trained with numbers."""
    folder = tmp_path_factory.mktemp("numbers") / "out"
    build(small_gpt, folder)
    fpgapipe.run(folder, "model", data="random", steps=1, validates=False)
    return folder


def test_goes_on_with_what_was_learned(trained):
    """Also beyond the context, of which each pass reads the last part."""
    found = fpgapipe.generate(trained, "str", 3 * CONTEXT)
    assert found.text == (CYCLE * 5)[: 3 + 3 * CONTEXT]
    assert found.prompt == (115, 116, 114)
    assert (found.context, found.temperature, found.seed, found.cycles) == (CONTEXT, *3 * [None])
    assert all(row["probability"] > 0.5 for row in found.rows)
    assert str(found) == found.text
    assert found.to_records()[0]["character"] == "e"
    assert found == fpgapipe.generate(trained / "run" / "model", list(map(ord, "str")), 24)


def test_the_probability_is_that_of_the_pass(trained):
    """A prompt as long as the context, or longer, is computed as a sample of a batch."""
    prompt = (CYCLE * 4)[: CONTEXT + 5]
    source = open_weights(Path(trained), "model")
    with source.make() as runner:
        row = np.tile(np.array(list(map(ord, prompt[-CONTEXT:]))), (8, 1))
        results, _ = runner.infer({"tokens": row}, scalar_bits())
    logits = results[runner.graph.outputs[0]][0, -1].astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum()
    (first,) = fpgapipe.generate(trained, prompt, 1).rows
    assert first["token"] == logits.argmax()
    assert first["probability"] == pytest.approx(shares.max())
    assert fpgapipe.generate(trained, prompt[-CONTEXT:], 1).rows == (first,)


def test_a_build_for_inference_gives_the_same(trained, tmp_path):
    checkpoint = max((trained / "run/model/checkpoints").glob("*.ckpt"))
    network = small_gpt if "gpt" in fpgapipe.open_build(trained).graph.name else small_lstm
    build(
        network, tmp_path / "infer", batch=8, options=fpgapipe.StepOptions(train=False),
        parameters=str(checkpoint),
    )  # fmt: skip
    found = fpgapipe.generate(tmp_path / "infer", "str", 6)
    assert found.weights == tmp_path / "infer"
    trains = fpgapipe.generate(trained, "str", 6)
    assert (found.rows, found.text) == (trains.rows, trains.text)
    numbers = fpgapipe.generate(tmp_path / "infer", found.prompt, 6)
    assert numbers.text == ",".join(map(str, (*found.prompt, *found.tokens)))


@pytest.mark.sim
def test_simulated_hardware_gives_the_models_bits(tmp_path):
    build(small_gpt, tmp_path / "out", hardware=True)
    fpgapipe.run(tmp_path / "out", "model", data="random", steps=1, validates=False)
    model, sim = (
        fpgapipe.generate(tmp_path / "out", [1, 2, 3], 2, backend=backend)
        for backend in ("model", "sim")
    )
    assert model.rows == sim.rows
    assert sim.cycles > 1000


def test_an_onnx_model_goes_on(tmp_path):
    """An embedding and a product, enough to learn which character is behind each."""
    pytest.importorskip("onnx", reason="needs the onnx extra")
    from onnx_models import TensorProto, node, random, save

    nodes = [node("Gather", ["table", "tokens"], ["x"]), node("MatMul", ["x", "head"], ["y"])]
    inputs = {"tokens": ([2, CONTEXT], TensorProto.INT64)}
    weights = {"table": random(128, 16), "head": 0.1 * random(16, 128)}
    model = save(tmp_path / "pairs.onnx", nodes, inputs, weights=weights)
    (tmp_path / "cycle.txt").write_text(CYCLE * 40)
    build(model, tmp_path / "out")
    fpgapipe.run(
        tmp_path / "out", "model", data=str(tmp_path / "cycle.txt"), steps=60, learning_rate=0.1,
        validates=False,
    )  # fmt: skip
    assert fpgapipe.generate(tmp_path / "out", "ea", 14).text == "eamstreamstreams"


def test_files(trained, tmp_path, capsys):
    words = ["generate", str(trained), "--prompt", "str", "--count", "3"]
    assert main([*words, "-o", str(tmp_path / "a.txt")]) == 0
    assert capsys.readouterr().out == "stream\n"
    assert (tmp_path / "a.txt").read_text() == "stream\n"
    drawn = ["--temperature", "0.5", "--top-k", "3", "--seed", "7"]
    assert main([*words, *drawn, "-o", str(tmp_path / "a.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "a.json").read_text())
    assert (found["temperature"], found["top_k"], found["seed"]) == (0.5, 3, 7)
    assert len(found["generated"]) == 3


def test_numbers_where_the_data_are_no_text(of_numbers, capsys):
    assert main(["generate", str(of_numbers), "--tokens", "7,8", "--count", "2"]) == 0
    found = fpgapipe.generate(of_numbers, [7, 8], 2)
    assert capsys.readouterr().out == f"7,8,{found.tokens[0]},{found.tokens[1]}\n"
    assert [row["character"] for row in found.rows] == [None, None]


def test_draws_depend_on_the_seed_alone(of_numbers):
    one, same, other = (
        fpgapipe.generate(of_numbers, [1], 12, temperature=1.5, seed=seed).tokens
        for seed in (3, 3, 4)
    )
    assert one == same != other
    first = fpgapipe.generate(of_numbers, [1], 12, top_k=1, seed=3)
    assert first.temperature == 1
    assert first.tokens == fpgapipe.generate(of_numbers, [1], 12).tokens


def test_draws_have_the_probabilities():
    shares = np.array([0.1, 0.4, 0.1, 0.4])
    rng = np.random.default_rng(0)

    def counts(temperature, top_k=None):
        found = [drawn(np.log(shares), temperature, top_k, rng) for _ in range(4000)]
        return np.bincount(found, minlength=4) / len(found)

    np.testing.assert_allclose(counts(1.0), shares, atol=0.03)
    cold = shares**2 / (shares**2).sum()
    np.testing.assert_allclose(counts(0.5), cold, atol=0.03)
    np.testing.assert_allclose(counts(1.0, 3), np.array([1, 4, 0, 4]) / 9, atol=0.03)
    assert drawn(np.log(shares), None, None, rng) == 1  # of equal ones the first
    assert {drawn(np.log(shares), 1e-6, 1, rng) for _ in range(20)} == {1}


def test_a_token_that_is_no_character():
    tokens = (65, 0xDC80, 0x110000)
    rows = tuple({"token": each, "character": None, "probability": 1.0} for each in tokens[1:])
    found = Generated("n", Path("w"), "model", 8, tokens[:1], rows, is_text=True)
    assert found.text == "A\ufffd\ufffd"


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("network", [small_gpt, small_lstm], ids=["gpt", "lstm"])
def test_causal_networks_pass(network, batch):
    graph = network(batch).evaluated
    row = np.arange(CONTEXT)
    check_causal(graph, initial_parameters(graph, 0), row, 128, range(CONTEXT - 1))


@pytest.mark.parametrize("batch", [1, 2])
def test_each_position_that_is_read_is_checked(batch):
    graph = in_pairs(batch).evaluated
    values, row = initial_parameters(graph, 0), np.arange(CONTEXT)
    check_causal(graph, values, row, 32, [1, 3, 5])
    with pytest.raises(fpgapipe.UserError, match="pairs is not causal: what it gives for position"):
        check_causal(graph, values, row, 32, [1, 2])


def refused(capsys, *words):
    assert main(["generate", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_what_is_refused(of_numbers, tmp_path, capsys):
    tokens = (of_numbers, "--tokens", "1")
    for words, message in [
        ((of_numbers,), "give either --prompt or --tokens"),
        ((*tokens, "--prompt", "x"), "give either --prompt or --tokens"),
        ((of_numbers, "--prompt", "x"), "trained with random, whose tokens are no characters"),
        ((of_numbers, "--tokens", "1,128"), "token 2 of the prompt must be 0..127"),
        ((of_numbers, "--tokens", ""), "--tokens must be whole numbers such as 1,2,3, not ''"),
        ((of_numbers, "--tokens", "1,x"), "--tokens must be whole numbers"),
        ((*tokens, "--temperature", "0"), "Invalid value for '--temperature'"),
        ((*tokens, "--top-k", "0"), "Invalid value for '--top-k'"),
        ((*tokens, "--top-k", "129"), "top-k must be 1..128, the tokens of small-gpt, not 129"),
        ((*tokens, "--seed", "1"), "a seed is for tokens that are drawn"),
        ((*tokens, "--backend", "torch"), "text is generated in model and sim, not torch"),
        ((*tokens, "--backend", "x"), "'--backend'"),
        ((*tokens, "--step", "7"), "has no checkpoint after step 7"),
        ((*tokens, "-o", "x.csv"), "is written as .txt or .json"),
        ((tmp_path / "none", "--tokens", "1"), "is not there"),
    ]:
        assert message in refused(capsys, *words)
    for options, message in [
        ({"count": 0}, "tokens to choose must be 1..1,048,576, not 0"),
        ({"temperature": 0.0}, "the temperature must be above 0 and finite, not 0.0"),
        ({"temperature": float("nan")}, "the temperature must be above 0 and finite, not nan"),
        ({"top_k": 0}, "top-k must be at least 1, not 0"),
        ({"top_k": 2, "seed": -1}, "the seed must be at least 0, not -1"),
        ({"backend": "torch"}, "text is generated in model and sim, not torch"),
        ({"prompt": []}, "the prompt must have at least one token"),
        ({"prompt": [-1]}, "token 1 of the prompt must be 0..127"),
    ]:
        with pytest.raises(fpgapipe.UserError, match=message):
            fpgapipe.generate(of_numbers, **{"prompt": [1], "count": 1, **options})


def test_characters_outside_the_vocabulary_are_named(trained):
    message = "token 3 of the prompt must be 0..127, the tokens of small-.*, but 'ü' is 252"
    with pytest.raises(fpgapipe.UserError, match=message):
        fpgapipe.generate(trained, "brücke", 1)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (attentive, "attentive is not causal"),
        (in_pairs, "pairs is not causal"),
        (classifier, "classifier does not give a distribution over its 16 tokens for each of 8"),
    ],
)
def test_networks_that_cannot_continue(network, message, tmp_path):
    build(network, tmp_path / "out")
    fpgapipe.run(tmp_path / "out", "model", data="random", steps=1, validates=False)
    for prompt in ([1, 2, 3], list(range(10))):  # also one that fills the context
        with pytest.raises(fpgapipe.UserError, match=message):
            fpgapipe.generate(tmp_path / "out", prompt, 3)


def test_a_network_of_images(tmp_path):
    build("digits-cnn", tmp_path / "out")
    with pytest.raises(fpgapipe.UserError, match="has no checkpoint; 'fpgapipe run"):
        fpgapipe.generate(tmp_path / "out", [1], 1)
    fpgapipe.run(tmp_path / "out", "model", data="random", steps=1, validates=False)
    with pytest.raises(fpgapipe.UserError, match="digits-cnn reads no single row of tokens"):
        fpgapipe.generate(tmp_path / "out", [1], 1)

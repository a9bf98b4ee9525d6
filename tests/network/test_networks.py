import pytest

from fpgapipe.network.graph import NetworkError
from fpgapipe.network.operators import Pass
from fpgapipe.network.zoo import NETWORKS, built_in, find

torch = pytest.importorskip("torch", reason="needs the torch extra")


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "resnet18", "resnet50", "resnet152", "inception_v3"]
)
def test_counts_equal_pytorchs_layer_by_layer(name, batch):
    from torch_models import IMAGE_NETWORKS, count

    build, size = IMAGE_NETWORKS[name]
    theirs = count(build(), size, batch)
    graph = built_in(name, batch)
    ours = [
        (layer.op, layer.macs, layer.num_parameters)
        for layer in graph.layers.values()
        if layer.num_parameters
    ]
    # A residual block's short cut is called after the main branch in both; inception's branches
    # come in the same order.
    assert ours == theirs
    assert graph.totals.macs == sum(macs for _, macs, _ in theirs)
    assert graph.totals.parameters == sum(parameters for _, _, parameters in theirs)


# Published or independently known: torchvision's documentation for the image networks, the papers
# for BERT and GPT-2, and for GNMT-8 the sum of the parameter bytes in PipeDream's own profile.
PARAMETERS = {
    "lenet5": 61_706,
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "inception_v3": 23_834_568,
    "mobilenet_v2": 3_504_872,
    "vit_b": 86_567_656,
    "gnmt8": 775_063_808 // 4,
    "bert_base": 109_482_240,
    "gpt2_small": 124_439_808,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_published_counts(name):
    assert built_in(name).totals.parameters == PARAMETERS[name]


def test_digits_cnn_by_hand():
    graph = built_in("digits-cnn", 2)
    macs = 64 * 9 * 32 + 64 * 9 * 32 * 32 + 16 * 9 * 32 * 64 + 256 * 128 + 128 * 10
    weights = 9 * 32 + 32 + 9 * 32 * 32 + 32 + 9 * 32 * 64 + 64 + 256 * 128 + 128 + 1280 + 10
    assert graph.totals.macs == 2 * macs
    assert graph.totals.parameters == weights
    assert graph.outputs == ("fc2",)


def test_cosmoflow_halves_its_cube_five_times():
    graph = built_in("cosmoflow")
    assert graph.layers["pool5"].output.shape == (1, 512, 4, 4, 4)
    assert graph.layers["conv1"].macs == 128**3 * 32 * 4 * 8
    assert graph.layers["scale"].output.shape == (1, 4)


def test_gnmt16_has_twice_the_layers_of_gnmt8():
    small, large = (
        [layer for layer in built_in(name).layers.values() if layer.op == "lstm"]
        for name in ("gnmt8", "gnmt16")
    )
    assert (len(small), len(large)) == (8, 16)


def test_tied_weights_count_once():
    graph = built_in("gpt2_small")
    head = graph.layers["head"]
    assert [p.name for p in head.parameters] == ["wte.weight"]
    assert head.num_parameters == 50257 * 768
    per_layer = sum(layer.num_parameters for layer in graph.layers.values())
    assert per_layer - graph.totals.parameters == 50257 * 768


@pytest.mark.parametrize("name", NETWORKS)
def test_everything_scales_with_the_batch_but_parameters(name):
    one, three = built_in(name, 1), built_in(name, 3)
    assert three.totals.parameters == one.totals.parameters
    assert three.totals.macs == 3 * one.totals.macs
    own = sum(layer.features for layer in one.layers.values() if not layer.inputs)
    used = sum(layer.features for layer in one.layers.values() if layer.name.endswith(".used"))
    assert three.totals.features - own - used == 3 * (one.totals.features - own - used)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_multiplication_has_its_gradients(name):
    """Each product of the forward pass stands once in dX (unless first) and once in dW or dX."""
    graph = built_in(name)
    for layer in graph.layers.values():
        passes = graph.passes(layer.name)
        macs = {kind: sum(gemm.macs for gemm in gemms) for kind, gemms in passes.items()}
        if layer.op == "matmul":
            assert macs[Pass.INPUT_GRADIENT] == 2 * layer.macs
        elif layer.macs:
            assert macs[Pass.WEIGHT_GRADIENT] == layer.macs
            assert macs.get(Pass.INPUT_GRADIENT, layer.macs) == layer.macs


def test_first_layer_has_no_input_gradient():
    for name in ("digits-cnn", "resnet50", "cosmoflow"):
        graph = built_in(name)
        layers = list(graph.layers)
        assert Pass.INPUT_GRADIENT not in graph.passes(layers[0])
        assert all(Pass.INPUT_GRADIENT in graph.passes(layer) for layer in layers[1:])


def test_names_are_found_however_they_are_written():
    assert find("ResNet-50") == "resnet50"
    assert find("DIGITS_CNN") == "digits-cnn"
    assert find("Inception-v3") == "inception_v3"
    assert find("resnet") is None


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(
        NetworkError, match=r"^no built-in network 'resnet51'; did you mean 'resnet50'\?"
    ):
        built_in("resnet51")


@pytest.mark.parametrize("batch", [0, -1])
def test_batch_must_be_positive(batch):
    with pytest.raises(NetworkError, match=f"^alexnet: batch must be at least 1, not {batch}$"):
        built_in("alexnet", batch)


def test_char_lstm_by_hand():
    graph = built_in("char-lstm", 2)
    layers = 2 * (4 * 128 * (128 + 128) + 2 * 4 * 128)
    assert graph.totals.parameters == 128 * 128 + layers + 128 * 128 + 128
    assert graph.totals.macs == 2 * 64 * (2 * 4 * 128 * (128 + 128) + 128 * 128)

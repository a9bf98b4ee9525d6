"""Functions of elements that both readers have, against PyTorch."""

import pytest
import torch
from torch.nn import functional

from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.elements import bounded, celu, chain, elu
from fpgapipe.network.operators import Activation, Clamp
from fpgapipe.network.zoo.layers import Network

X = torch.linspace(-6, 9, 61).reshape(1, 61)


@pytest.mark.parametrize(
    ("steps", "words", "wanted"),
    [
        (elu(0.7), [""], functional.elu(X, 0.7)),
        (elu(0.7, 2.0), [".elu", ""], 2 * functional.elu(X, 0.7)),
        (elu(0.7, 2.0, 4.0), [".inner", ".elu", ""], torch.ops.aten.elu(X, 0.7, 2.0, 4.0)),
        (celu(1.0), [""], functional.celu(X)),
        (celu(0.3), [".inner", ".elu", ""], functional.celu(X, 0.3)),
        ([("bounds", bounded(-1.0, 2.0))], [""], X.clamp(-1.0, 2.0)),
        ([("bounds", bounded(3.0, 2.0))], [""], X.clamp(3.0, 2.0)),
        ([("bounds", bounded(None, 2.0))], [""], X.clamp(max=2.0)),
        ([("bounds", bounded(0.0, 6.0))], [""], functional.relu6(X)),
        ([("bounds", bounded(0.0, None))], [""], functional.relu(X)),
    ],
)
def test_functions_are_those_of_pytorch(steps, words, wanted):
    """What changes nothing has no layer; the last layer has the name."""
    net = Network("elements", 1)
    result = chain(net, "f", steps, net.image(61))
    graph = net.build()
    assert (list(graph.layers), result) == ([f"f{word}" for word in words], "f")
    found = forward(graph, {}, {next(iter(graph.inputs)): X})["f"]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("steps", [lambda: elu(1.0, 1.0, 0.0), lambda: celu(0.0)])
def test_a_factor_of_zero_is_refused(steps):
    with pytest.raises(Unsupported, match="only a factor other than 0"):
        steps()


def test_bounds_of_two_activations():
    assert bounded(0, 6, strict=True) == Activation("relu6")
    assert bounded(0, 6.5, strict=True) == Clamp(0, 6.5, strict=True)

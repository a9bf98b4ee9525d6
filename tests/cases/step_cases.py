"""Networks and cores for tests of training steps."""

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.network.zoo.layers import Network

SMALL_CORE = CoreSpec(
    8, 8, acc_depth=256, scratchpad=ScratchpadSpec(8, 1 << 14), vector=VectorSpec(4, 2)
)


def every_operator(batch: int, size: int = 9):
    """A network with every operator that a step has."""
    net = Network("every operator", batch)
    x = net.image(3, size, size)
    x = net.max_pool(net.relu(net.conv(x, 12, 3, padding=1)), 3, stride=2, padding=1)
    y = net.relu(net.batch_norm(net.conv(x, 12, 3, padding=1, bias=False)))
    y = net.batch_norm(net.conv(y, 12, 1, bias=False))
    x = net.relu(net.plus(y, x))
    x = net.average_pool(net.activation(x, "leaky_relu"), 2, stride=1)
    x = net.activation(net.conv(x, 20, 2, stride=2), "leaky_relu")
    x = net.dropout(net.batch_norm(x), 0.25)
    x = net.plus(x, net.conv(x, 20, 1))
    x = net.flatten(net.global_average_pool(x))
    net.linear(net.relu(net.linear(x, 17)), 5)
    return net.build()


def vectors_only(batch: int):
    """A network in which but one product comes before the operators of the vector engine."""
    net = Network("vectors only", batch)
    x = net.conv(net.image(3, 8, 8), 20, 1, bias=False)
    x = net.relu(net.batch_norm(x))
    x = net.max_pool(x, 2)
    x = net.plus(net.batch_norm(x), x)
    x = net.average_pool(net.activation(x, "leaky_relu"), 3, stride=1, padding=1)
    net.flatten(net.global_average_pool(x))
    return net.build()

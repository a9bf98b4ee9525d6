"""Three small ONNX models with odd shapes, written by ONNX's own helper."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class _Model:
    """A chain of nodes with random weights; every node's output is the next one's input."""

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        self._name = name
        self._shape = shape
        self._rng = np.random.default_rng(1)
        self._nodes: list[Any] = []
        self._values: list[Any] = []
        self.last = "image"

    def _value(self, *shape: int) -> str:
        """Name of a new initial value."""
        name = f"value{len(self._values)}"
        content = self._rng.standard_normal(shape).astype(np.float32) / max(shape) ** 0.5
        self._values.append(numpy_helper.from_array(content, name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node behind the last one."""
        name = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(kind, [self.last, *inputs], [name], name=name, **attributes)
        )
        self.last = name
        return name

    def conv(self, channels: tuple[int, int], kernel: tuple[int, int], **attributes: Any) -> None:
        """Add a convolution with bias, from `channels[0]` channels to `channels[1]`."""
        weight, bias = self._value(channels[1], channels[0], *kernel), self._value(channels[1])
        self.node("Conv", weight, bias, kernel_shape=list(kernel), **attributes)

    def normalised(self, channels: int) -> None:
        """Add a batch normalisation."""
        values = [self._value(channels) for _ in range(3)]
        variance = numpy_helper.from_array(np.ones(channels, np.float32), f"{values[0]}_variance")
        self._values.append(variance)
        self.node("BatchNormalization", *values, variance.name)

    def linear(self, size: int, outputs: int) -> None:
        """Add a linear layer."""
        self.node("Gemm", self._value(outputs, size), self._value(outputs), transB=1)

    def save(self, path: Path, classes: int) -> None:
        """Check the model and write it."""
        float32 = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("image", float32, ["N", *self._shape])],
            [helper.make_tensor_value_info(self.last, float32, ["N", classes])],
            self._values,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        onnx.checker.check_model(model)
        onnx.save(model, path)


def strided(path: Path) -> None:
    """Write convolutions of one channel and of odd kernels, strides and image sides."""
    model = _Model("strided", (1, 23, 17))
    model.conv((1, 6), (5, 3), strides=[2, 1], pads=[2, 1, 2, 1])
    model.node("Relu")
    model.node("MaxPool", kernel_shape=[3, 3], strides=[2, 2])
    model.conv((6, 13), (3, 2), pads=[1, 0, 1, 1])
    model.node("Relu")
    model.conv((13, 9), (1, 3), strides=[1, 2])
    model.node("Relu")
    model.node("Flatten")
    model.linear(9 * 5 * 3, 11)
    model.save(path, 11)


def residual(path: Path) -> None:
    """Write residual blocks with batch normalisation and a mean over an odd image."""
    model = _Model("residual", (3, 19, 15))
    model.conv((3, 10), (3, 3), pads=[1, 1, 1, 1])
    model.normalised(10)
    before = model.node("Relu")
    model.conv((10, 10), (3, 3), pads=[1, 1, 1, 1])
    model.normalised(10)
    model.node("Relu")
    model.conv((10, 10), (3, 3), pads=[1, 1, 1, 1])
    model.normalised(10)
    model.node("Add", before)
    model.node("Relu")
    model.conv((10, 21), (3, 3), strides=[2, 2])
    model.normalised(21)
    model.node("Relu")
    model.node("GlobalAveragePool")
    model.node("Flatten")
    model.linear(21, 7)
    model.save(path, 7)


def linear(path: Path) -> None:
    """Write linear layers of odd widths, the first ones wide for their batch."""
    model = _Model("linear", (95,))
    sizes = (95, 167, 33, 129, 23, 5)
    for size, outputs in pairwise(sizes):
        model.linear(size, outputs)
        if outputs != sizes[-1]:
            model.node("Relu")
    model.save(path, sizes[-1])


MODELS: dict[str, Callable[[Path], None]] = {
    "odd-strided": strided,
    "odd-residual": residual,
    "odd-linear": linear,
}
"""Models by name; each function writes one."""

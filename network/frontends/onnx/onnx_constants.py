"""Constant folding: initializers, and tensors that are computed from them or from shapes.

Exporters compute shapes with small programs (Shape, Gather, Concat...). These are evaluated with
ONNX's own reference implementation once the shapes that they read are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fpgapipe.network.operators.tensors import MAX_ELEMENTS, ShapeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHAPE_OPS = ("Shape", "Size")
"""Operators that read only the shape of a tensor, so their results do not depend on its values."""

MAX_FOLDED_ELEMENTS = 2**27
"""Most elements of a constant that is computed (512 MiB of FP32)."""

# fmt: off
FOLDED_OPS = frozenset((
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "Constant", "ConstantOfShape",
    "DequantizeLinear", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not",
    "Or", "Pow", "QuantizeLinear", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd",
    "ReduceSum", "Reshape", "Shape", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
    "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
))
# fmt: on
"""Operators with which exporters compute shapes and constants. Other operators are translated even
if all their inputs are constant."""


class Constants:
    """The tensors of a graph whose values are known.

    Parameters
    ----------
    onnx : module
        The onnx library.
    graph : onnx.GraphProto
        The model's graph.
    opset : int
        Version of the operators that the model uses.
    """

    def __init__(self, onnx: Any, graph: Any, opset: int) -> None:
        self._onnx = onnx
        self._opset = opset
        self._initializers = {each.name: each for each in graph.initializer}
        self._values: dict[str, NDArray[np.generic]] = {}
        self._learnable = set(self._initializers)
        self._known = set(self._initializers)
        self._moves: dict[str, Any] = {}
        self._origins: dict[str, frozenset[str]] = {}
        for node in graph.node:
            if self.folds(node):
                self._known.update(node.output)

    def folds(self, node: Any) -> bool:
        """Whether a node's results are known before the network runs."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in FOLDED_OPS:
            return False
        if node.op_type in (*SHAPE_OPS, "Constant"):
            return True
        inputs = [name for name in node.input if name]
        return bool(inputs) and all(name in self._known for name in inputs)

    def is_constant(self, name: str) -> bool:
        """Whether a tensor's values are known."""
        return name in self._known

    def is_learnable(self, name: str) -> bool:
        """Whether a known tensor is a weight: an initializer, perhaps rearranged."""
        return name in self._learnable

    def moves(self, name: str) -> Any | None:
        """The node that repeats, joins or slices weights to make a tensor; None if none does."""
        return self._moves.get(name)

    def origins(self, name: str) -> frozenset[str]:
        """The tensors whose elements a known tensor has, perhaps rearranged or in part."""
        return self._origins.get(name, frozenset((name,)))

    def get(self, name: str) -> NDArray[np.generic] | None:
        """The values of a tensor; None if they are not known."""
        if name not in self._values and name in self._initializers:
            try:
                self._values[name] = self._onnx.numpy_helper.to_array(self._initializers[name])
            except Exception as error:  # numpy has various errors if the type contradicts the data
                raise ShapeError(f"initializer {name!r} cannot be read: {error}") from None
        return self._values.get(name)

    def put(self, name: str, value: NDArray[np.generic]) -> None:
        """Record the values of a tensor that were computed elsewhere."""
        self._values[name] = value
        self._known.add(name)

    def fold(self, node: Any, static_shape: Callable[[str], tuple[int, ...]]) -> bool:
        """Evaluate a node if it `folds`; return whether it does.

        Parameters
        ----------
        node : onnx.NodeProto
        static_shape : function
            Function that returns the shape of a tensor that is not constant.

        Raises
        ------
        ShapeError
            If the evaluation fails.
        """
        if not self.folds(node):
            return False
        import numpy as np

        operands: dict[str, NDArray[np.generic]] = {}
        if node.op_type in SHAPE_OPS:
            name = node.input[0]
            value = self.get(name)
            shape = value.shape if value is not None else static_shape(name)
            # Only the shape counts; a broadcast zero has it without taking the tensor's memory.
            operands[name] = np.broadcast_to(np.float32(0), shape)
        else:
            for name in node.input:
                value = self.get(name) if name else None
                if value is not None:
                    operands[name] = value
        if node.op_type == "ConstantOfShape":
            results = [self._filled(node, operands[node.input[0]])]
        else:
            results = self._evaluate(node, operands)
        if node.op_type == "Identity":
            results = [operands[node.input[0]]]  # the evaluator copies it
        sources = [
            name
            for name in (node.input if node.op_type in _MOVING else node.input[:1])
            if name in self._moves or (name in self._learnable and operands[name].ndim)
        ]
        moved = bool(sources) and node.op_type in _MOVING
        rearranged = node.op_type in _REARRANGING and node.input[0] in self._learnable
        for name, result in zip(node.output, results, strict=False):
            self._values[name] = result
            if moved or rearranged:
                origins = map(self.origins, sources or node.input[:1])
                self._origins[name] = frozenset[str]().union(*origins)
            if moved and result.dtype.kind == "f":
                self._moves[name] = node
            if rearranged or node.op_type == "ConstantOfShape":
                self._learnable.add(name)
        return True

    def _filled(self, node: Any, shape: NDArray[np.generic]) -> NDArray[np.generic]:
        """The result of ConstantOfShape as a broadcast value; some models have such weights."""
        import numpy as np

        fill = np.zeros(1, np.float32)
        for attribute in node.attribute:
            fill = self._onnx.numpy_helper.to_array(attribute.t)
        sizes = tuple(int(size) for size in shape.reshape(-1)[:64])
        if fill.size != 1 or any(size < 0 for size in sizes) or math.prod(sizes) > MAX_ELEMENTS:
            raise ShapeError(f"no constant can have the shape {list(sizes)}")
        return np.broadcast_to(fill.reshape(()), sizes)

    def _evaluate(
        self, node: Any, operands: dict[str, NDArray[np.generic]]
    ) -> list[NDArray[np.generic]]:
        from fpgapipe.network.frontends.onnx.onnx_kernels import session

        if node.op_type not in SHAPE_OPS and _elements(node, operands) > MAX_FOLDED_ELEMENTS:
            raise ShapeError(f"evaluates to over {MAX_FOLDED_ELEMENTS} constant elements")
        helper = self._onnx.helper
        graph = helper.make_graph(
            [node],
            "constant",
            [self._onnx.ValueInfoProto(name=name) for name in operands],
            [self._onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        imports = [helper.make_opsetid("", self._opset)]
        model = helper.make_model(graph, opset_imports=imports)
        try:
            results: list[NDArray[np.generic]] = session(model).run(None, operands)
        except Exception as error:  # its errors have no common base class
            raise ShapeError(f"evaluating it failed: {' '.join(str(error).split())}") from None
        return results


def _elements(node: Any, operands: dict[str, NDArray[np.generic]]) -> float:
    """Upper bound of the number of elements of a node's operands and results."""
    import numpy as np

    values = list(operands.values())
    read = sum(each.size for each in values)
    if read > MAX_FOLDED_ELEMENTS:
        return float(read)
    if node.op_type == "Range":
        start, limit, step = (float(each.reshape(-1)[0]) for each in values)
        return abs(limit - start) / abs(step) if step else math.inf
    if node.op_type in ("Expand", "Tile"):
        factors = values[1].reshape(-1)[:64].astype(float)
        return values[0].size * math.prod(max(abs(factor), 1.0) for factor in factors)
    try:
        return float(math.prod(np.broadcast_shapes(*(each.shape for each in values))))
    except ValueError:  # not element-wise, so its results are no larger than its inputs
        return float(read)


_MOVING = ("Expand", "Slice", "Concat", "Split", "Tile")
"""Operators whose results stay learnable if they are translated to layers instead of folded."""

_REARRANGING = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Cast")
"""Operators whose result is still a weight if their input is one."""

"""The graph builder with which the built-in networks are written."""

from collections.abc import Sequence

from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.operators import (
    Activation,
    Affine,
    BatchNorm,
    Binary,
    Concat,
    Conv,
    ConvTranspose,
    Dropout,
    Embedding,
    Flatten,
    GlobalPool,
    Gru,
    LayerNorm,
    Linear,
    LocalResponseNorm,
    Lstm,
    MatMul,
    Operator,
    Pool,
    Reshape,
    Softmax,
    Split,
    Transpose,
    Unary,
    Upsample,
)
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.operators.windows import per_axis

Size = int | Sequence[int]


class Network(GraphBuilder):
    """A graph builder with a method for each kind of layer.

    Each method takes the names of its inputs, adds one layer and returns its name, so networks read
    like programs. A layer that is given no name is called by its operator's name and a number.
    """

    def image(self, channels: int, *sizes: int) -> str:
        """The network's input of ``batch, channels, *sizes``."""
        return self.input("input", Tensor((self._samples, channels, *sizes)))

    def tokens(self, name: str, positions: int) -> str:
        """An input of ``batch, positions`` token indices."""
        return self.input(name, Tensor((self._samples, positions), DType.INT64))

    def conv(
        self,
        x: str,
        channels: int,
        kernel: Size,
        *,
        stride: Size = 1,
        padding: Size | Sequence[tuple[int, int]] = 0,
        groups: int = 1,
        bias: bool = True,
        name: str | None = None,
    ) -> str:
        """Convolution over as many axes as the input has beyond batch and channels."""
        rank = len(self.tensor(x).shape) - 2
        operator = Conv(
            channels,
            per_axis(kernel, rank, "kernel"),
            per_axis(stride, rank, "stride"),
            _both_sides(padding, rank),
            per_axis(1, rank, "dilation"),
            groups,
            bias,
        )
        return self._add(operator, x, name=name)

    def conv_transpose(
        self,
        x: str,
        channels: int,
        kernel: Size,
        *,
        stride: Size = 1,
        padding: Size | Sequence[tuple[int, int]] = 0,
        output_padding: Size = 0,
        bias: bool = True,
        name: str | None = None,
    ) -> str:
        """Transposed convolution over as many axes as the input has beyond batch and channels."""
        rank = len(self.tensor(x).shape) - 2
        operator = ConvTranspose(
            channels,
            per_axis(kernel, rank, "kernel"),
            per_axis(stride, rank, "stride"),
            _both_sides(padding, rank),
            per_axis(output_padding, rank, "output_padding"),
            per_axis(1, rank, "dilation"),
            bias=bias,
        )
        return self._add(operator, x, name=name)

    def max_pool(
        self, x: str, kernel: Size, *, stride: Size | None = None, padding: Size = 0, **name: str
    ) -> str:
        """Maximum over windows; the default stride is the kernel's size."""
        return self._pool("max", x, kernel, stride, padding, **name)

    def average_pool(
        self, x: str, kernel: Size, *, stride: Size | None = None, padding: Size = 0, **name: str
    ) -> str:
        """Average over windows, padding included."""
        return self._pool("average", x, kernel, stride, padding, **name)

    def global_average_pool(self, x: str, name: str | None = None) -> str:
        """Average over all positions."""
        return self._add(GlobalPool("average"), x, name=name)

    def upsample(self, x: str, *factors: int, name: str | None = None) -> str:
        """Repetition of each element along the spatial axes."""
        return self._add(Upsample(factors), x, name=name)

    def linear(
        self,
        x: str,
        features: int,
        *,
        bias: bool = True,
        name: str | None = None,
        weight: str | None = None,
    ) -> str:
        """Product with a weight, which may be another layer's parameter."""
        operator = Linear(features, bias)
        shared = {"weight": weight} if weight else None
        return self.add(name or self.fresh_name(operator.kind), operator, x, shared=shared)

    def activation(self, x: str, function: str, *, alpha: float = 0.01, **name: str) -> str:
        """Activation function, one of `ACTIVATIONS`."""
        return self._add(Activation(function, alpha), x, **name)

    def unary(self, x: str, function: str, name: str | None = None) -> str:
        """Function of elements, one of `UNARIES`."""
        return self._add(Unary(function), x, name=name)

    def relu(self, x: str, name: str | None = None) -> str:
        """``max(x, 0)``."""
        return self._add(Activation("relu"), x, name=name)

    def batch_norm(self, x: str, *, epsilon: float = 1e-5, name: str | None = None) -> str:
        """Normalisation of each channel."""
        return self._add(BatchNorm(epsilon), x, name=name)

    def layer_norm(self, x: str, *, epsilon: float = 1e-5, name: str | None = None) -> str:
        """Normalisation over the last axis."""
        return self._add(LayerNorm(1, epsilon), x, name=name)

    def local_response_norm(self, x: str, size: int, name: str | None = None) -> str:
        """Normalisation over neighbouring channels."""
        return self._add(LocalResponseNorm(size), x, name=name)

    def dropout(self, x: str, rate: float, name: str | None = None) -> str:
        """Dropout of a share of the elements in training."""
        return self._add(Dropout(rate), x, name=name)

    def plus(self, a: str, b: str, name: str | None = None) -> str:
        """Sum of two tensors."""
        return self._add(Binary("add"), a, b, name=name)

    def scale(self, x: str, factor: float, name: str | None = None) -> str:
        """Product with a fixed number."""
        return self._add(Affine(scale=factor), x, name=name)

    def concat(self, xs: Sequence[str], axis: int = 1, name: str | None = None) -> str:
        """Tensors concatenated along an axis."""
        return self._add(Concat(axis), *xs, name=name)

    def split(self, x: str, parts: int, axis: int, name: str) -> list[str]:
        """Equal parts along an axis; each is a layer."""
        size = self.tensor(x).shape[axis] // parts
        rank = len(self.tensor(x).shape)
        return [
            self.add(f"{name}.{i}", Split(axis % rank, i * size, (i + 1) * size), x)
            for i in range(parts)
        ]

    def flatten(self, x: str, name: str | None = None) -> str:
        """All axes except that of the batch, joined into one."""
        return self._add(Flatten(1), x, name=name)

    def reshape(self, x: str, *shape: int, name: str | None = None) -> str:
        """The same elements in another shape."""
        return self._add(Reshape(shape), x, name=name)

    def transpose(self, x: str, *order: int, name: str | None = None) -> str:
        """The axes in another order."""
        return self._add(Transpose(order), x, name=name)

    def matmul(self, a: str, b: str, name: str | None = None) -> str:
        """Batched product of two tensors."""
        return self._add(MatMul(), a, b, name=name)

    def softmax(self, x: str, *, causal: bool = False, name: str | None = None) -> str:
        """Softmax along the last axis."""
        return self._add(Softmax(-1, causal=causal), x, name=name)

    def embedding(self, x: str, num_embeddings: int, features: int, name: str | None = None) -> str:
        """Rows of a learned table."""
        return self._add(Embedding(num_embeddings, features), x, name=name)

    def lstm(
        self,
        x: str,
        hidden: int,
        *states: str,
        bidirectional: bool = False,
        final_cell: bool = False,
        name: str | None = None,
    ) -> str:
        """One LSTM layer; `states` are the initial hidden state and cell state, if not zeros."""
        operator = Lstm(hidden, bidirectional, final_cell=final_cell)
        return self._add(operator, x, *states, name=name)

    def gru(
        self,
        x: str,
        hidden: int,
        *states: str,
        bidirectional: bool = False,
        name: str | None = None,
    ) -> str:
        """One layer of gated recurrent units; `states` is the initial one, if it is not zeros."""
        return self._add(Gru(hidden, bidirectional), x, *states, name=name)

    @property
    def _samples(self) -> int:
        assert self.batch is not None
        return self.batch

    def _pool(
        self,
        function: str,
        x: str,
        kernel: Size,
        stride: Size | None,
        padding: Size,
        name: str | None = None,
    ) -> str:
        rank = len(self.tensor(x).shape) - 2
        operator = Pool(
            function,
            per_axis(kernel, rank, "kernel"),
            per_axis(kernel if stride is None else stride, rank, "stride"),
            _both_sides(padding, rank),
            per_axis(1, rank, "dilation"),
        )
        return self._add(operator, x, name=name)

    def _add(self, operator: Operator, *inputs: str, name: str | None = None) -> str:
        return self.add(name or self.fresh_name(operator.kind), operator, *inputs)


def _both_sides(
    padding: Size | Sequence[tuple[int, int]], rank: int
) -> tuple[tuple[int, int], ...]:
    if isinstance(padding, int):
        return ((padding, padding),) * rank
    return tuple((side, side) if isinstance(side, int) else side for side in padding)

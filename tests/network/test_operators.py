import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpgapipe.network.operators import (
    Activation,
    BatchNorm,
    Binary,
    Concat,
    Constant,
    Conv,
    CrossEntropy,
    Dropout,
    Embedding,
    Flatten,
    Gemm,
    GlobalPool,
    Gru,
    LayerNorm,
    Linear,
    Lstm,
    MatMul,
    Measured,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
    Upsample,
)
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor, broadcast
from fpgapipe.network.operators.windows import same_padding, window_counts


def conv(channels, kernel, stride=1, padding=0, groups=1, dilation=1, rank=2):
    every = (1,) * rank
    return Conv(
        channels,
        tuple(kernel * e for e in every),
        tuple(stride * e for e in every),
        ((padding, padding),) * rank,
        tuple(dilation * e for e in every),
        groups,
    )


def test_conv_by_hand():
    x = Tensor((2, 3, 10, 8))
    operator = conv(6, 3, stride=2, padding=1, groups=3)
    y = operator.output([x])
    assert y.shape == (2, 6, 5, 4)
    assert [p.shape for p in operator.parameters([x])] == [(6, 1, 3, 3), (6,)]
    assert operator.gemms([x], y) == (Gemm(m=2 * 20, k=9, n=2, count=3),)


@given(
    rank=st.integers(1, 3),
    size=st.integers(1, 9),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 3),
    groups=st.integers(1, 3),
)
def test_conv_shape_equals_pytorchs(rank, size, kernel, stride, padding, dilation, groups):
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    module = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[rank - 1]
    theirs = module(
        groups * 2, groups * 3, kernel, stride, padding, dilation, groups, device="meta"
    )
    shape = (2, groups * 2, *(size + i for i in range(rank)))
    ours = conv(groups * 3, kernel, stride, padding, groups, dilation, rank)
    try:
        expected = tuple(theirs(torch.empty(shape, device="meta")).shape)
    except RuntimeError:
        with pytest.raises(ShapeError, match="exceeds the padded input"):
            ours.output([Tensor(shape)])
    else:
        assert ours.output([Tensor(shape)]).shape == expected


@given(
    size=st.integers(1, 12),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    ceil_mode=st.booleans(),
)
def test_pool_shape_equals_pytorchs(size, kernel, stride, padding, ceil_mode):
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    if padding > kernel // 2:  # PyTorch's own limit
        return
    theirs = torch.nn.MaxPool1d(kernel, stride, padding, ceil_mode=ceil_mode)
    ours = Pool("max", (kernel,), (stride,), ((padding, padding),), (1,), ceil_mode)
    try:
        expected = tuple(theirs(torch.empty(1, 1, size, device="meta")).shape)
    except RuntimeError:
        with pytest.raises(ShapeError, match="exceeds the padded input"):
            ours.output([Tensor((1, 1, size))])
    else:
        assert ours.output([Tensor((1, 1, size))]).shape == expected


@given(size=st.integers(1, 40), kernel=st.integers(1, 9), stride=st.integers(1, 6))
def test_same_padding_gives_the_rounded_up_quotient(size, kernel, stride):
    padding = same_padding([size], [kernel], [stride], [1])
    counts = window_counts("conv", [size], [kernel], [stride], padding, [1])
    assert counts == (-(-size // stride),)
    before, after = padding[0]
    assert after - before in (0, 1)


def test_gradients_of_a_product():
    gemm = Gemm(m=5, k=3, n=2, count=4)
    assert gemm.input_gradients() == (Gemm(m=5, k=2, n=3, count=4),)
    assert gemm.weight_gradients() == (Gemm(m=3, k=5, n=2, count=4),)
    both = Gemm(m=5, k=3, n=2, weights=False)
    assert both.input_gradients() == (
        Gemm(m=5, k=2, n=3, weights=False),
        Gemm(m=3, k=5, n=2, weights=False),
    )
    assert both.weight_gradients() == ()


def test_lstm_by_hand():
    x = Tensor((2, 7, 5))
    operator = Lstm(hidden=3, bidirectional=True)
    assert operator.output([x]).shape == (2, 7, 6)
    assert sum(p.elements for p in operator.parameters([x])) == 2 * 4 * 3 * (5 + 3 + 2)
    along, across = operator.gemms([x], operator.output([x]))
    assert along == Gemm(m=14, k=5, n=12, count=2)
    assert across == Gemm(m=2, k=3, n=12, count=2, steps=7)
    # All steps' weight gradients are one product, since none waits for another.
    assert across.weight_gradients() == (Gemm(m=3, k=14, n=12, count=2),)
    assert across.input_gradients() == (Gemm(m=2, k=12, n=3, count=2, steps=7),)


def test_gru_by_hand():
    x = Tensor((2, 7, 5))
    operator = Gru(hidden=3)
    assert operator.output([x]).shape == (2, 7, 3)
    assert sum(p.elements for p in operator.parameters([x])) == 3 * 3 * (5 + 3 + 2)
    along, across = operator.gemms([x], operator.output([x]))
    assert along == Gemm(m=14, k=5, n=9)
    assert across == Gemm(m=2, k=3, n=9, steps=7)


def test_last_cell_states_are_a_further_position():
    x = Tensor((2, 7, 5))
    assert Lstm(3, bidirectional=True, final_cell=True).output([x]).shape == (2, 8, 6)


def test_initial_states_must_fit():
    x, state = Tensor((2, 7, 5)), Tensor((2, 6))
    assert Gru(3, bidirectional=True).output([x, state]).shape == (2, 7, 6)
    message = r"^lstm must have an initial cell state of shape \[2, 3\], not \[2, 6\]$"
    with pytest.raises(ShapeError, match=message):
        Lstm(3).output([x, Tensor((2, 3)), state])
    message = r"^lstm takes 1 or 3 inputs \(with the initial hidden state and cell state\), not 2$"
    with pytest.raises(ShapeError, match=message):
        Lstm(3).check_arity(2)
    with pytest.raises(ShapeError, match=r"^gru takes 1 or 2 inputs"):
        Gru(3).check_arity(3)


def test_linear_takes_all_leading_axes_together():
    x = Tensor((2, 3, 4))
    y = Linear(5).output([x])
    assert (y.shape, Linear(5).gemms([x], y)) == ((2, 3, 5), (Gemm(m=6, k=4, n=5),))
    assert Linear(5).output([Tensor((4,))]).shape == (5,)


@pytest.mark.parametrize(
    ("a", "b", "shape", "macs"),
    [
        ((2, 3), (3, 4), (2, 4), 24),
        ((5, 1, 2, 3), (7, 3, 4), (5, 7, 2, 4), 24 * 35),
        ((3,), (3, 4), (4,), 12),
        ((2, 3), (3,), (2,), 6),
        ((3,), (3,), (), 3),
    ],
)
def test_matmul_follows_numpy(a, b, shape, macs):
    y = MatMul().output([Tensor(a), Tensor(b)])
    assert y.shape == shape
    assert sum(gemm.macs for gemm in MatMul().gemms([Tensor(a), Tensor(b)], y)) == macs


@pytest.mark.parametrize(
    ("operator", "shape", "expected"),
    [
        (Flatten(1), (2, 3, 4), (2, 12)),
        (Flatten(0), (2, 3, 4), (24,)),
        (Flatten(1), (7,), (7, 1)),
        (Flatten(1, 2), (2, 3, 4, 5), (2, 12, 5)),
        (Reshape((-1, 6)), (2, 3, 4), (4, 6)),
        (Transpose((2, 0, 1)), (2, 3, 4), (4, 2, 3)),
        (Slice(1, 1, 8, 3), (2, 9), (2, 3)),
        (Pad(((0, 0), (1, 2))), (2, 3), (2, 6)),
        (Reduce("mean", (-1, 1)), (2, 3, 4, 5), (2, 4)),
        (Reduce("max", (1,), keep_axes=True), (2, 3), (2, 1)),
        (Upsample((2, 3)), (2, 3, 4, 5), (2, 3, 8, 15)),
        (GlobalPool("average"), (2, 3, 4, 5, 6), (2, 3, 1, 1, 1)),
        (Softmax(-1), (2, 3), (2, 3)),
        (Dropout(0.0), (4,), (4,)),
    ],
)
def test_shapes(operator, shape, expected):
    assert operator.output([Tensor(shape)]).shape == expected


def test_parameters_of_normalisations():
    x = Tensor((2, 8, 3, 3))
    assert [(p.role, p.shape, p.trainable) for p in BatchNorm().parameters([x])] == [
        ("weight", (8,), True),
        ("bias", (8,), True),
        ("running_mean", (8,), False),
        ("running_var", (8,), False),
    ]
    assert [p.shape for p in LayerNorm(2).parameters([x])] == [(3, 3), (3, 3)]
    assert [p.role for p in LayerNorm(1, bias=False).parameters([x])] == ["weight"]
    assert Activation("prelu").parameters([x])[0].shape == (8,)


def test_measured_counts_fp32_elements_but_keeps_bytes():
    operator = Measured(1.0, 2.0, 0.0, output_bytes=10, weight_bytes=4001)
    assert operator.output([]).elements == 3
    assert operator.parameters([])[0].elements == 1001
    assert Measured(0, 0, 0, 0, 0).output([]).elements == 1


INDICES = Tensor((2, 3), DType.INT64)
BAD = {
    "conv out_channels must be at least 1, not 0": lambda: conv(0, 3),
    "conv kernel must be at least 1, not (0, 0)": lambda: conv(1, 0),
    "conv has 1..3 spatial axes, not 4": lambda: conv(1, 1, rank=4),
    "conv out_channels must be a multiple of groups=2, not 3": lambda: conv(3, 1, groups=2),
    "conv padding must not be negative: ((-1, -1), (-1, -1))": lambda: conv(1, 1, padding=-1),
    "conv input channels must be a multiple of groups=2, not 3": lambda: conv(
        2, 1, groups=2
    ).output([Tensor((1, 3, 4, 4))]),
    "conv window of 5 elements exceeds the padded input of 4 on spatial axis 0": lambda: conv(
        1, 5
    ).output([Tensor((1, 1, 4, 9))]),
    "conv needs an input of 4 dimensions, not [1, 2]": lambda: conv(1, 1).output([Tensor((1, 2))]),
    "conv needs a floating-point input, not int64": lambda: conv(1, 1).output(
        [Tensor((1, 1, 2, 2), DType.INT64)]
    ),
    "matmul of [2, 3] and [4, 5] has unequal inner sizes": lambda: MatMul().output(
        [Tensor((2, 3)), Tensor((4, 5))]
    ),
    "embedding needs integer indices, not float32": lambda: Embedding(3, 4).output([Tensor((2,))]),
    "shapes [2, 3] and [4] do not broadcast": lambda: Binary("add").output(
        [Tensor((2, 3)), Tensor((4,))]
    ),
    "max_pool padding must be at least 0 and below the window, not ((2, 2),)": lambda: Pool(
        "max", (2,), (2,), ((2, 2),), (1,)
    ),
    "reshape of [2, 3] (6 elements) to [4, -1] changes the number of elements": lambda: Reshape(
        (4, -1)
    ).output([Tensor((2, 3))]),
    "reshape to [-1, -1]: sizes are positive, at most one is -1": lambda: Reshape((-1, -1)).output(
        [Tensor((2, 3))]
    ),
    "transpose order [0, 0] is no permutation of 2 axes": lambda: Transpose((0, 0)).output(
        [Tensor((2, 3))]
    ),
    "concat along axis 1 of [2, 3] and [4, 3]: the other axes differ": lambda: Concat(1).output(
        [Tensor((2, 3)), Tensor((4, 3))]
    ),
    "slice 1:5:1 must lie in 0..3 with a positive step": lambda: Slice(1, 1, 5).output(
        [Tensor((2, 3))]
    ),
    "axis must be in -2..1, not 2": lambda: Softmax(2).output([Tensor((2, 3))]),
    "cross_entropy labels must be integers of shape [2], not int64 [2, 3]": lambda: (
        CrossEntropy().output([Tensor((2, 5)), INDICES])
    ),
    "dropout rate must be at least 0 and below 1, not 1.0": lambda: Dropout(1.0),
    "forward_s must be at least 0 and finite, not nan": lambda: Measured(float("nan"), 0, 0, 0, 0),
    "add takes 2 inputs, not 3": lambda: Binary("add").check_arity(3),
    "concat takes 1 or more inputs, not 0": lambda: Concat().check_arity(0),
    "each dimension must be a positive integer, not [2, 0]": lambda: Tensor((2, 0)),
    "a tensor holds at most 2**53 elements, not [134217728, 134217728]": lambda: Constant(
        (2**27, 2**27)
    ).output([]),
    "activation must be one of": lambda: Activation("swoosh"),
}


@pytest.mark.parametrize("message", BAD)
def test_refusals(message):
    with pytest.raises(ShapeError) as error:
        BAD[message]()
    assert str(error.value).startswith(message)


def test_broadcast_by_hand():
    assert broadcast([(3, 1), (4,), ()]) == (3, 4)
    assert broadcast([]) == ()

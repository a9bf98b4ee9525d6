"""Steps of recurrent cells on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.lowering.kernels.recurrent.cells import Gradients, Position, Sequence
from fpgapipe.lowering.kernels.recurrent.gru import GRU
from fpgapipe.lowering.kernels.recurrent.lstm import LSTM
from fpgapipe.lowering.tiling.kernel import Region, Tensor

POSITIONS = 3
CELLS = pytest.mark.parametrize("cell", [LSTM, GRU], ids=["lstm", "gru"])


def tensors_of(cell, samples, width, hidden=FP32, gradients=FP32):
    wide = cell.gates * width
    sequence = Sequence(
        Tensor("sums", (POSITIONS, samples, wide)),
        Tensor("kept", (POSITIONS, samples, cell.kept * width)),
        Tensor("cells", (POSITIONS + 1, samples, width)),
        Tensor("hidden", (POSITIONS + 1, samples, width), hidden),
    )
    others = {
        "recurrent": Tensor("recurrent", (samples, wide)),
        "bias": Tensor("bias", (cell.biases * width,)),
        "dy": Tensor("dy", (POSITIONS, samples, width), gradients),
        "dsums": Tensor("dsums", (POSITIONS, samples, wide), gradients),
        "dcell": Tensor("dcell", (samples, width)),
        "dbefore": Tensor("dbefore", (samples, width)),
        "dhidden": Tensor("dhidden", (samples, width)),
    }
    if cell is GRU:
        others["drecurrent"] = Tensor("drecurrent", (POSITIONS, samples, wide), gradients)
    return sequence, others


def contents(sequence, others):
    every = [sequence.sums, sequence.kept, sequence.cells, sequence.hidden, *others.values()]
    return every, {each.name: drawn(each.shape, seed) for seed, each in enumerate(every)}


def gradients_of(others, *, dhidden=True):
    names = ("dy", "dsums", "dcell", "dbefore", *(("dhidden",) if dhidden else ()))
    found = {name: others[name] for name in names}
    return Gradients(drecurrent=others.get("drecurrent", others["dsums"]), **found)


def of_lstm(sums, product, bias, before):
    """The equations in PyTorch's documentation of LSTMCell."""
    i, f, g, o = (sums + product + bias).chunk(4, -1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    cell = f * before + i * g
    return torch.cat((i, f, g, o), -1), cell, o * torch.tanh(cell)


def of_gru(sums, product, bias, before):
    """The equations in PyTorch's documentation of GRUCell."""
    (a, b, c), (d, e, f) = sums.chunk(3, -1), product.chunk(3, -1)
    both_a, both_b, own_c, own_f = bias.chunk(4, -1)
    r, z = torch.sigmoid(a + d + both_a), torch.sigmoid(b + e + both_b)
    n = torch.tanh(c + own_c + r * (f + own_f))
    hidden = (1 - z) * n + z * before
    return torch.cat((r, z, n, f + own_f), -1), hidden, hidden


def reference(cell, values, position, *, recurrent, bias, dhidden):
    """Results and gradients of PyTorch, in FP64."""
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    sums = given["sums"][position.at].clone().requires_grad_()
    product = given["recurrent"] if recurrent else torch.zeros_like(given["recurrent"])
    product = product.clone().requires_grad_()
    before = given["cells"][position.before].clone().requires_grad_()
    own_bias = given["bias"] if bias else torch.zeros_like(given["bias"])
    kept, after, hidden = (of_lstm if cell is LSTM else of_gru)(sums, product, own_bias, before)
    dh = given["dy"][position.at] + (given["dhidden"] if dhidden else 0)
    total = (hidden * dh).sum() + (after * given["dcell"]).sum()
    dsums, drecurrent, dbefore = torch.autograd.grad(total, (sums, product, before))
    found = {"kept": kept, "cell": after, "hidden": hidden, "dsums": dsums, "dbefore": dbefore}
    if cell is GRU:
        found["drecurrent"] = drecurrent
    return {name: each.detach().numpy() for name, each in found.items()}


def run(cell, samples, width, position, *, region=REGION, recurrent=True, bias=True, dhidden=True,
        formats=(FP32, FP32)):  # fmt: skip
    """Both kernels, one after the other."""
    sequence, others = tensors_of(cell, samples, width, *formats)
    tensors, values = contents(sequence, others)
    forward = cell.forward(
        "forward", sequence, position, region,
        recurrent=others["recurrent"] if recurrent else None, bias=others["bias"] if bias else None,
    )  # fmt: skip
    gradients = gradients_of(others, dhidden=dhidden)
    backward = cell.backward("backward", sequence, position, region, gradients)
    found = execute([forward, backward], tensors, values)
    if formats[1] is BF16:
        values["dy"] = BF16.decode(BF16.encode(values["dy"]), values["dy"].shape)
    summands = {"recurrent": recurrent, "bias": bias, "dhidden": dhidden}
    expected = reference(cell, values, position, **summands)
    own = {
        "kept": found["kept"][position.at],
        "cell": found["cells"][position.after],
        "hidden": found["hidden"][position.after],
        "dsums": found["dsums"][position.at],
        "dbefore": found["dbefore"],
    }
    if cell is GRU:
        own["drecurrent"] = found["drecurrent"][position.at]
    return own, expected, found, values


@CELLS
@pytest.mark.parametrize(
    ("samples", "width"), [(1, 1), (3, 5), (4, 16), (2, 17), (70, 40), (5, 128)]
)
@pytest.mark.parametrize("position", [Position(0, 0, 1), Position(1, 2, 1), Position(2, 2, 3)])
def test_a_step_is_that_of_pytorch(cell, samples, width, position):
    own, expected, found, values = run(cell, samples, width, position)
    for name, value in expected.items():
        assert error(own[name], value) < 2e-6, name
    for name in {"kept", "dsums", "drecurrent"} & found.keys():
        others = [at for at in range(POSITIONS) if at != position.at]
        np.testing.assert_array_equal(found[name][others], values[name][others])
    for name in ("cells", "hidden"):
        others = [at for at in range(POSITIONS + 1) if at != position.after]
        np.testing.assert_array_equal(found[name][others], values[name][others])


@CELLS
@pytest.mark.parametrize("left_out", [["recurrent"], ["bias"], ["dhidden"], ["recurrent", "bias"]])
def test_without_a_summand(cell, left_out):
    own, expected, _, _ = run(cell, 3, 20, Position(1, 1, 2), **dict.fromkeys(left_out, False))
    for name, value in expected.items():
        assert error(own[name], value) < 2e-6, name


@CELLS
def test_states_and_gradients_in_bf16(cell):
    own, expected, _, _ = run(cell, 3, 20, Position(1, 1, 2), formats=(BF16, BF16))
    for name, value in expected.items():
        coarse = name in ("hidden", "dsums", "drecurrent")
        assert error(own[name], value) < (4e-3 if coarse else 2e-6), name


@CELLS
def test_pieces_change_no_bit(cell):
    position = Position(1, 1, 2)
    one, _, _, _ = run(cell, 9, 24, position)
    few, _, _, _ = run(cell, 9, 24, position, region=Region(REGION.base, 1 << 13))
    for name, value in one.items():
        np.testing.assert_array_equal(value, few[name], err_msg=name)


@CELLS
def test_a_sample_must_fit(cell):
    with pytest.raises(NoRoom, match=r"^kernel forward needs "):
        run(cell, 2, 600, Position(0, 0, 1), region=Region(REGION.base, 1 << 13))


def saturated(cell, sums):
    """Both kernels with gates that are open or closed."""
    sequence, others = tensors_of(cell, 2, 16)
    tensors, values = contents(sequence, others)
    values["sums"][...] = np.repeat(np.float32(sums), 16)
    position = Position(0, 0, 1)
    forward = cell.forward("forward", sequence, position, REGION)
    backward = cell.backward("backward", sequence, position, REGION, gradients_of(others))
    found = execute([forward, backward], tensors, values)
    np.testing.assert_array_equal(found["cells"][1], values["cells"][0])
    return found, values


def test_saturated_gates_of_an_lstm_keep_the_cell():
    """An open forget gate and a closed input gate leave the cell as it is, with no gradient."""
    found, _ = saturated(LSTM, [-200, 200, 0, 0])
    assert not found["dsums"][0][:, :32].any()


def test_a_saturated_gate_of_a_gru_keeps_the_state():
    """An open update gate leaves the state as it is, whose gradient goes on whole."""
    found, values = saturated(GRU, [0, 200, 0])
    assert not found["dsums"][0][:, 16:32].any()
    total = (values["dy"][0] + values["dcell"]) + values["dhidden"]
    np.testing.assert_array_equal(found["dbefore"], total)

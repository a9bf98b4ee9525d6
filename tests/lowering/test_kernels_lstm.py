"""Steps of LSTM cells on the model of a core, against PyTorch."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, drawn, error, execute

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.lowering.kernels.lstm import Position, Sequence, cell_backward, cell_forward
from fpgapipe.lowering.tiling.kernel import Region, Tensor

POSITIONS = 3
BACKWARD_NAMES = ("dy", "dgates", "dcell", "dbefore", "dhidden")


def tensors_of(samples, width, hidden=FP32, gradients=FP32):
    wide = 4 * width
    sequence = Sequence(
        Tensor("sums", (POSITIONS, samples, wide)),
        Tensor("gates", (POSITIONS, samples, wide)),
        Tensor("cells", (POSITIONS + 1, samples, width)),
        Tensor("hidden", (POSITIONS + 1, samples, width), hidden),
    )
    others = {
        "recurrent": Tensor("recurrent", (samples, wide)),
        "bias": Tensor("bias", (wide,)),
        "dy": Tensor("dy", (POSITIONS, samples, width), gradients),
        "dgates": Tensor("dgates", (POSITIONS, samples, wide), gradients),
        "dcell": Tensor("dcell", (samples, width)),
        "dbefore": Tensor("dbefore", (samples, width)),
        "dhidden": Tensor("dhidden", (samples, width)),
    }
    return sequence, others


def contents(sequence, others):
    every = [sequence.sums, sequence.gates, sequence.cells, sequence.hidden, *others.values()]
    return every, {each.name: drawn(each.shape, seed) for seed, each in enumerate(every)}


def reference(values, position, *, recurrent, bias, dhidden):
    """What PyTorch computes in FP64 of the equations in its documentation of LSTMCell."""
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    sums = given["sums"][position.at]
    if recurrent:
        sums = sums + given["recurrent"]
    if bias:
        sums = sums + given["bias"]
    sums.requires_grad_()
    before = given["cells"][position.before].clone().requires_grad_()
    i, f, g, o = sums.chunk(4, -1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    cell = f * before + i * g
    hidden = o * torch.tanh(cell)
    dh = given["dy"][position.at] + (given["dhidden"] if dhidden else 0)
    total = (hidden * dh).sum() + (cell * given["dcell"]).sum()
    dgates, dbefore = torch.autograd.grad(total, (sums, before))
    found = {"gates": torch.cat((i, f, g, o), -1), "cell": cell, "hidden": hidden}
    found |= {"dgates": dgates, "dbefore": dbefore}
    return {name: each.detach().numpy() for name, each in found.items()}


def run(samples, width, position, *, region=REGION, recurrent=True, bias=True, dhidden=True,
        formats=(FP32, FP32)):  # fmt: skip
    """Both kernels, one after the other."""
    sequence, others = tensors_of(samples, width, *formats)
    tensors, values = contents(sequence, others)
    forward = cell_forward(
        "forward", sequence, position, region,
        recurrent=others["recurrent"] if recurrent else None, bias=others["bias"] if bias else None,
    )  # fmt: skip
    names = BACKWARD_NAMES if dhidden else BACKWARD_NAMES[:-1]
    backward = cell_backward(
        "backward", sequence, position, region, **{name: others[name] for name in names}
    )
    found = execute([forward, backward], tensors, values)
    if formats[1] is BF16:
        values["dy"] = BF16.decode(BF16.encode(values["dy"]), values["dy"].shape)
    expected = reference(values, position, recurrent=recurrent, bias=bias, dhidden=dhidden)
    own = {
        "gates": found["gates"][position.at],
        "cell": found["cells"][position.after],
        "hidden": found["hidden"][position.after],
        "dgates": found["dgates"][position.at],
        "dbefore": found["dbefore"],
    }
    return own, expected, found, values


@pytest.mark.parametrize(
    ("samples", "width"), [(1, 1), (3, 5), (4, 16), (2, 17), (70, 40), (5, 128)]
)
@pytest.mark.parametrize("position", [Position(0, 0, 1), Position(1, 2, 1), Position(2, 2, 3)])
def test_a_step_is_that_of_pytorch(samples, width, position):
    own, expected, found, values = run(samples, width, position)
    for name, value in expected.items():
        assert error(own[name], value) < 2e-6, name
    for name in ("gates", "dgates"):
        others = [at for at in range(POSITIONS) if at != position.at]
        np.testing.assert_array_equal(found[name][others], values[name][others])
    for name in ("cells", "hidden"):
        others = [at for at in range(POSITIONS + 1) if at != position.after]
        np.testing.assert_array_equal(found[name][others], values[name][others])


@pytest.mark.parametrize("left_out", ["recurrent", "bias", "dhidden"])
def test_without_a_summand(left_out):
    own, expected, _, _ = run(3, 20, Position(1, 1, 2), **{left_out: False})
    for name, value in expected.items():
        assert error(own[name], value) < 2e-6, name


def test_states_and_gradients_in_bf16():
    own, expected, _, _ = run(3, 20, Position(1, 1, 2), formats=(BF16, BF16))
    for name, value in expected.items():
        assert error(own[name], value) < (4e-3 if name in ("hidden", "dgates") else 2e-6), name


def test_pieces_change_no_bit():
    position = Position(1, 1, 2)
    one, _, _, _ = run(9, 24, position)
    few, _, _, _ = run(9, 24, position, region=Region(REGION.base, 1 << 13))
    for name, value in one.items():
        np.testing.assert_array_equal(value, few[name], err_msg=name)


def test_a_sample_must_fit():
    with pytest.raises(NoRoom, match=r"^kernel forward needs "):
        run(2, 600, Position(0, 0, 1), region=Region(REGION.base, 1 << 13))


def test_saturated_gates_keep_the_cell():
    """An open forget gate and a closed input gate leave the cell as it is, with no gradient."""
    sequence, others = tensors_of(2, 16)
    tensors, values = contents(sequence, others)
    values["sums"][...] = np.repeat(np.float32([-200, 200, 0, 0]), 16)
    position = Position(0, 0, 1)
    forward = cell_forward("forward", sequence, position, REGION)
    backward = cell_backward(
        "backward", sequence, position, REGION, **{name: others[name] for name in BACKWARD_NAMES}
    )
    found = execute([forward, backward], tensors, values)
    np.testing.assert_array_equal(found["cells"][1], values["cells"][0])
    assert not found["dgates"][0][:, :32].any()

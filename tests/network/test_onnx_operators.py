"""ONNX's own operator cases on a core: as networks of one layer, or as kernels."""

from functools import cache, partial

import pytest

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
from kernel_cases import drawn  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_cases import (  # noqa: E402
    Case,
    Machine,
    SimulatedMachine,
    cases_of,
    run_add,
    run_batch_norm,
    run_binary,
    run_cross_entropy,
    run_gemm,
    run_network,
    run_optimiser,
    run_softmax,
)
from step_cases import SMALL_CORE  # noqa: E402

from fpgapipe.errors import UserError  # noqa: E402

exact_network = partial(run_network, exact=True)

RUNNERS = {
    "Conv": partial(run_network, constants=(1, 2)),
    "Gemm": run_gemm,
    "MatMul": partial(run_network, constants=(1,)),
    "Relu": exact_network,
    "LeakyRelu": run_network,
    "MaxPool": exact_network,
    "AveragePool": run_network,
    "GlobalMaxPool": exact_network,
    "GlobalAveragePool": run_network,
    "BatchNormalization": run_batch_norm,
    "Dropout": partial(exact_network, constants=(1, 2)),
    "Flatten": exact_network,
    "Sum": exact_network,
    "Add": run_add,
    "Sub": run_binary("sub", exact=True),
    "Mul": run_binary("mul", exact=True),
    "Div": run_binary("div"),
    "Max": run_binary("max", exact=True),
    "Min": run_binary("min", exact=True),
    "Abs": exact_network,
    "Neg": exact_network,
    "Reciprocal": run_network,
    "Sqrt": run_network,
    "Exp": run_network,
    "Log": run_network,
    "Tanh": run_network,
    "Sigmoid": run_network,
    "Softplus": run_network,
    "Softsign": run_network,
    "Mish": run_network,
    "Elu": run_network,
    "Selu": run_network,
    "Celu": run_network,
    "Erf": run_network,
    "Gelu": run_network,
    "Swish": run_network,
    "HardSigmoid": run_network,
    "HardSwish": run_network,
    "Clip": partial(exact_network, constants=(1, 2)),
    "Resize": partial(run_network, constants=(1, 2, 3)),
    "Upsample": partial(exact_network, constants=(1,)),
    "Pad": partial(exact_network, constants=(1, 2, 3)),
    "Slice": partial(exact_network, constants=(1, 2, 3, 4)),
    "Softmax": run_softmax,
    "LogSoftmax": run_softmax,
    "SoftmaxCrossEntropyLoss": run_cross_entropy,
    "Momentum": run_optimiser,
    "Adam": run_optimiser,
}
"""How the cases of an operator are run; exactly, if ONNX's result is to come out bit for bit."""


def names(prefix, *rests):
    """Names of cases."""
    return tuple(f"test_{prefix}_{rest}" for rest in rests)


SMALL_INTEGERS = ("int8", "int16", "uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SMALL_INTEGERS, "int32", "int64")

REFUSED = {
    "where the maxima stood, or what was dropped, leaves the network": (
        "is read",
        (
            *names("maxpool_with_argmax_2d_precomputed", "pads", "strides"),
            *names("dropout_default", "mask", "mask_ratio"),
            *names("training_dropout", "default_mask", "mask", "zero_ratio_mask"),
        ),
    ),
    "its operands are no matrices, or are broadcast": (
        "whose axes before the last two are the same",
        names("matmul", "1d_3d", "bcast"),
    ),
    "its result is one number": ("is one number for all samples", names("matmul", "1d_1d")),
    "it does nothing": (
        "is the input .* itself",
        (*names("sum", "one_input"), *names("clip", "default_inbounds", "default_int8_inbounds")),
    ),
    "it gives nothing": ("must lie in 0..10", names("slice", "start_out_of_bounds")),
    "it smooths, keeps a ratio, or reads a region": (
        "only without antialias|whose ratio is free|without a region of interest",
        (
            *names("resize_tf_crop_and_resize", "extrapolation_value", "axes_2_3", "axes_3_2"),
            "test_resize_tf_crop_and_resize",
            *(
                f"test_resize_downsample_{form}_antialias"
                for form in ("scales_linear", "sizes_linear", "scales_cubic", "sizes_cubic")
            ),
            *(
                f"test_resize_{form}sample_sizes_nearest_not_{other}"
                for form in ("up", "down")
                for other in ("larger", "smaller")
            ),
        ),
    ),
    "its numbers are integers": (
        "must have floating-point numbers|element type UINT|needs a floating-point input",
        (
            *names("add", *SMALL_INTEGERS),
            *names("maxpool", "2d_uint8"),
            *names("clip_default_int8", "min", "max"),
            *names("edge", "pad"),
            *names("reflect", "pad"),
            *names("wrap", "pad"),
        ),
    ),
}
"""Cases that import or lowering refuses: why, part of what it says, and which."""

NOT_RUN = {
    "its numbers are integers": (
        *names("sub", *SMALL_INTEGERS),
        *names("mul", *SMALL_INTEGERS),
        *names("div", *SMALL_INTEGERS, "int32_trunc"),
        *names("max", *INTEGERS),
        *names("min", *INTEGERS),
    ),
    "its numbers are FP16 or FP64": (
        *names("max", "float16", "float64"),
        *names("min", "float16", "float64"),
        *names("celu", "float16", "bfloat16"),
    ),
    "it does nothing": (*names("max", "one_input"), *names("min", "one_input")),
    "its random numbers are NumPy's": names("training", "dropout", "dropout_default"),
    "its loss has weights": (
        *names("sce", "mean_weight", "mean_weight_log_prob"),
        *names("sce", "none_weights", "none_weights_log_prob"),
        *names("sce_NCd1d2d3d4d5", "mean_weight", "mean_weight_log_prob"),
        *(
            f"test_sce_{form}{more}"
            for form in ("mean_weight_ii", "mean_weight_ii_3d", "mean_weight_ii_4d")
            for more in ("", "_log_prob")
        ),
        *names("sce_NCd1_mean_weight", "negative_ii", "negative_ii_log_prob"),
        *names("sce_NCd1d2d3_sum_weight", "high_ii", "high_ii_log_prob"),
    ),
    "its loss ignores some labels": tuple(
        f"test_sce_{form}{more}"
        for form in (
            "mean_no_weight_ii",
            "mean_no_weight_ii_3d",
            "mean_no_weight_ii_4d",
            "NCd1d2d3_none_no_weight_negative_ii",
        )
        for more in ("", "_log_prob")
    ),
    "it aligns corners of a fractional length, against ONNX's text": names(
        "resize_downsample_scales", "linear_align_corners", "cubic_align_corners"
    ),
    "its loss is no mean": (
        *names("sce", "none", "none_log_prob", "sum", "sum_log_prob"),
        *names("sce_NCd1d2d3d4d5_none", "no_weight", "no_weight_log_prob"),
    ),
}
"""Cases whose operator's kernels are not meant for them."""

LEFT_OUT = {name for _, group in REFUSED.values() for name in group} | {
    name for group in NOT_RUN.values() for name in group
}


def check(operator, machine, tmp_path):
    """Run all cases of an operator but those that are left out."""
    chosen = [case for name, case in cases_of(operator).items() if name not in LEFT_OUT]
    assert chosen
    for case in chosen:
        RUNNERS[operator](case, machine, tmp_path / "case.onnx").check(case)


@pytest.mark.parametrize("operator", RUNNERS)
def test_operator(operator, tmp_path):
    """Every case gives what ONNX expects."""
    check(operator, Machine(), tmp_path)


def test_convolutions_with_other_weights(tmp_path):
    """ONNX's weights are all ones, so that nothing shows where they lie."""
    for name, case in cases_of("Conv").items():
        inputs = [drawn(each.shape, seed) for seed, each in enumerate(case.inputs)]
        given = dict(zip(case.names, inputs, strict=True))
        outputs = ReferenceEvaluator(case.model).run(None, given)
        other = Case(name, case.model, inputs, outputs)
        RUNNERS["Conv"](other, Machine(), tmp_path / "case.onnx").check(other)


def test_cases_that_are_left_out():
    """They are listed once, and there; the counts are those that docs/vector.md gives."""
    collected = {name for operator in RUNNERS for name in cases_of(operator)}
    listed = [name for _, group in REFUSED.values() for name in group]
    listed += [name for group in NOT_RUN.values() for name in group]
    assert len(listed) == len(LEFT_OUT)
    assert collected >= LEFT_OUT
    groups = [(reason, group) for reason, (_, group) in REFUSED.items()] + [*NOT_RUN.items()]
    for reason, group in groups:
        print(f"{len(group)} left out: {reason} ({', '.join(group)})")
    print(f"{len(collected) - len(LEFT_OUT)} of {len(collected)} run")
    assert (len(collected), len(LEFT_OUT)) == (321, 115), (
        f"onnx {onnx.__version__} has other cases: list those that cannot run, and count all anew"
    )


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_says_so(reason, tmp_path):
    message, group = REFUSED[reason]
    machine = Machine()
    for operator, runner in RUNNERS.items():
        for name, case in cases_of(operator).items():
            if name in group:
                with pytest.raises((UserError, NotImplementedError), match=message):
                    runner(case, machine, tmp_path / "case.onnx")


@cache
def gateware():
    """The simulated core, built once."""
    return SimulatedMachine(SMALL_CORE)


@pytest.mark.sim
@pytest.mark.parametrize("operator", RUNNERS)
def test_operator_on_gateware(operator, tmp_path):
    """The gateware leaves memory as the model does, and gives what ONNX expects."""
    check(operator, gateware(), tmp_path)

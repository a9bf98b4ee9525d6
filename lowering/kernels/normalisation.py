"""Batch normalisation, in training and in inference.

Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015.
"""

from dataclasses import dataclass

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Factor,
    Initial,
    Second,
)
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.kernels.activation import positions_by_channels, positive_only
from fpgapipe.lowering.tiling.channels import (
    EachStep,
    RowStep,
    SumStep,
    channel_kernel,
    rows_kernel,
    small,
)
from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel


@dataclass(frozen=True)
class BatchNorm:
    """Tensors and parameters of a batch normalisation.

    Attributes
    ----------
    name : str
    x : Tensor
        Tensor that is normalised.
    gamma, beta, running_mean, running_var : Tensor
        FP32 tensors of one number per channel.
    epsilon, momentum : float
        Running averages move by the fraction `momentum` towards new values, as in PyTorch.
    """

    name: str
    x: Tensor
    gamma: Tensor
    beta: Tensor
    running_mean: Tensor
    running_var: Tensor
    epsilon: float = 1e-5
    momentum: float = 0.1

    @property
    def statistics(self) -> Tensor:
        """Rows that forward keeps: -mean, gamma / deviation, 0, beta, 1 / deviation."""
        return small(f"{self.name}.statistics", 5, self.x.shape[-1])

    @property
    def mean(self) -> Tensor:
        """The negative mean, which one kernel passes to the next."""
        return small(f"{self.name}.mean", 1, self.x.shape[-1])

    @property
    def factors(self) -> Tensor:
        """Coefficients of the input's gradient, which one kernel passes to the next."""
        return small(f"{self.name}.factors", 4, self.x.shape[-1])

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """All tensors, apart from the attributes, that need a place in memory."""
        return self.statistics, self.mean, self.factors


def forward(
    norm: BatchNorm,
    y: Tensor,
    region: Region,
    *,
    residual: Tensor | None = None,
    relu: bool = False,
) -> list[VectorKernel]:
    """Normalise by the statistics of the (micro-)batch, and update the running averages."""
    own = normalise(norm, y, region, residual=residual, relu=relu)
    return [*statistics(norm, region), own]


def statistics(norm: BatchNorm, region: Region) -> list[VectorKernel]:
    """Compute the statistics of the (micro-)batch, and update the running averages.

    Mean and variance are computed in separate passes, so a large mean costs no precision.
    """
    positions, channels = positions_by_channels(norm.x)
    mean = channel_kernel(
        f"{norm.name}.mean",
        (positions, channels),
        region,
        sources={"x": norm.x},
        steps=[SumStep("x", "sum")],
        small_temporaries={"sum": 1},
        small_targets={"mean": norm.mean},
        rows=[_scaled(("sum", 0), ("mean", 0), -1 / positions)],
    )
    variance = channel_kernel(
        f"{norm.name}.variance",
        (positions, channels),
        region,
        sources={"x": norm.x},
        steps=[_squares()],
        small_sources=_learned(norm),
        small_temporaries={"sum": 1, "variance": 1, "sample": 1},
        small_targets=_targets(norm),
        rows=_statistics_rows(norm, positions),
    )
    return [mean, variance]


def _squares() -> SumStep:
    """Sum of the squares of the distances from the mean."""
    settings = {"addend": Addend.COEFFICIENT, "factor": Factor.SELF}
    return SumStep("x", "sum", coefficients="mean", settings=settings)


def _learned(norm: BatchNorm) -> dict[str, Tensor]:
    """Tensors that `_statistics_rows` reads, besides the sum."""
    return {
        "mean": norm.mean,
        "gamma": norm.gamma,
        "beta": norm.beta,
        "running mean": norm.running_mean,
        "running variance": norm.running_var,
    }


def _targets(norm: BatchNorm) -> dict[str, Tensor]:
    """Tensors that `_statistics_rows` writes."""
    return {
        "statistics": norm.statistics,
        "running mean": norm.running_mean,
        "running variance": norm.running_var,
    }


def _statistics_rows(norm: BatchNorm, positions: int) -> list[RowStep]:
    """Steps from the mean and the sum of squares to the statistics and running averages."""
    return [
        # Biased variance for the normalisation, and unbiased variance for the running average.
        _scaled(("sum", 0), ("variance", 0), 1 / positions),
        _scaled(("sum", 0), ("sample", 0), 1 / max(positions - 1, 1)),
        _moved(("mean", 0), ("running mean", 0), norm.momentum, negate=True),
        _moved(("sample", 0), ("running variance", 0), norm.momentum),
        RowStep(
            ("variance", 0),
            ("statistics", 4),
            settings={
                "addend": Addend.CONSTANT,
                "constants": (Constant(norm.epsilon),),
                "function": Function.RSQRT,
            },
        ),
        RowStep(("mean", 0), ("statistics", 0)),
        RowStep(("statistics", 4), ("statistics", 1), ("gamma", 0), settings={"factor": Factor.Y}),
        RowStep(("beta", 0), ("statistics", 2), settings={"otherwise": Choice.ZERO}),
        RowStep(("beta", 0), ("statistics", 3)),
    ]


def sum_of_values(norm: BatchNorm, total: Tensor, region: Region) -> VectorKernel:
    """Sum of each channel's values on this device, of several with parts of the images."""
    return channel_kernel(
        f"{norm.name}.sum",
        positions_by_channels(norm.x),
        region,
        sources={"x": norm.x},
        steps=[SumStep("x", "sum")],
        small_temporaries={"sum": 1},
        small_targets={"total": total},
        rows=[RowStep(("sum", 0), ("total", 0))],
    )


def mean_of_sum(norm: BatchNorm, total: Tensor, positions: int, region: Region) -> VectorKernel:
    """The negative mean, from a sum over all `positions`."""
    return rows_kernel(
        f"{norm.name}.mean",
        norm.x.shape[-1],
        region,
        sources={"sum": total},
        targets={"mean": norm.mean},
        rows=[_scaled(("sum", 0), ("mean", 0), -1 / positions)],
    )


def sum_of_squares(norm: BatchNorm, total: Tensor, region: Region) -> VectorKernel:
    """Sum of the squares of each channel's distances from the mean, on this device."""
    return channel_kernel(
        f"{norm.name}.squares",
        positions_by_channels(norm.x),
        region,
        sources={"x": norm.x},
        steps=[_squares()],
        small_sources={"mean": norm.mean},
        small_temporaries={"sum": 1},
        small_targets={"total": total},
        rows=[RowStep(("sum", 0), ("total", 0))],
    )


def statistics_of_sum(
    norm: BatchNorm, total: Tensor, positions: int, region: Region
) -> VectorKernel:
    """The statistics and running averages, from the squares over all `positions`."""
    return rows_kernel(
        f"{norm.name}.variance",
        norm.x.shape[-1],
        region,
        sources={"sum": total} | _learned(norm),
        targets=_targets(norm),
        rows=_statistics_rows(norm, positions),
        temporaries={"variance": 1, "sample": 1},
    )


def normalise(
    norm: BatchNorm,
    y: Tensor,
    region: Region,
    *,
    residual: Tensor | None = None,
    relu: bool = False,
) -> VectorKernel:
    """``y = (x - mean) * gamma / deviation + beta``, plus `residual`, with the kept statistics."""
    settings = {
        "addend": Addend.COEFFICIENT,
        "factor": Factor.COEFFICIENT,
        "second": Second.Y if residual else Second.NOTHING,
        "initial": Initial.COEFFICIENT,
        "relu": relu,
    }
    return channel_kernel(
        f"{norm.name}.normalise",
        positions_by_channels(norm.x),
        region,
        sources={"x": norm.x} | ({"residual": residual} if residual else {}),
        steps=[EachStep("x", "y", "residual" if residual else None, "statistics", settings)],
        targets={"y": y},
        small_sources={"statistics": norm.statistics},
    )


def infer(
    norm: BatchNorm,
    y: Tensor,
    region: Region,
    *,
    residual: Tensor | None = None,
    relu: bool = False,
) -> list[VectorKernel]:
    """Normalise by the running averages, in inference."""
    return [fold(norm, region), normalise(norm, y, region, residual=residual, relu=relu)]


def fold(norm: BatchNorm, region: Region) -> VectorKernel:
    """The statistics from the running averages."""
    channels = norm.x.shape[-1]
    epsilon = {
        "addend": Addend.CONSTANT,
        "constants": (Constant(norm.epsilon),),
        "function": Function.RSQRT,
    }
    rows = [
        RowStep(("running variance", 0), ("statistics", 4), settings=epsilon),
        RowStep(("running mean", 0), ("statistics", 0), settings={"negate_x": True}),
        RowStep(("statistics", 4), ("statistics", 1), ("gamma", 0), settings={"factor": Factor.Y}),
        RowStep(("beta", 0), ("statistics", 2), settings={"otherwise": Choice.ZERO}),
        RowStep(("beta", 0), ("statistics", 3)),
    ]
    return rows_kernel(
        f"{norm.name}.fold",
        channels,
        region,
        sources={
            "gamma": norm.gamma,
            "beta": norm.beta,
            "running mean": norm.running_mean,
            "running variance": norm.running_var,
        },
        targets={"statistics": norm.statistics},
        rows=rows,
    )


def backward(
    norm: BatchNorm,
    dy: Tensor,
    dx: Tensor,
    gradients: tuple[Tensor, Tensor],
    region: Region,
    *,
    activated: Tensor | None = None,
    masked: Tensor | None = None,
) -> list[VectorKernel]:
    """Compute the gradients of input, gamma and beta.

    ``dx = scale * (dy - mean(dy) - (x - mean) * dgamma / (deviation * positions))``, with
    ``scale = gamma / deviation``.

    Parameters
    ----------
    norm : BatchNorm
    dy, dx : Tensor
    gradients : (Tensor, Tensor)
        Gradients of gamma and beta.
    region : Region
    activated, masked : Tensor, optional
        If a ReLU follows the normalisation: the result of the ReLU, and the tensor for `dy` after
        the ReLU's gradient, which is the gradient of the normalisation's result and of a residual.
    """
    sums = sums_and_factors(norm, dy, gradients, region, activated=activated, masked=masked)
    return [sums, input_gradient(norm, masked or dy, dx, region)]


def sums_and_factors(
    norm: BatchNorm,
    dy: Tensor,
    gradients: tuple[Tensor, Tensor],
    region: Region,
    *,
    activated: Tensor | None = None,
    masked: Tensor | None = None,
) -> VectorKernel:
    """The gradients of scale and bias, and factors of the input's; see `backward`."""
    positions, channels = positions_by_channels(norm.x)
    sources, targets, steps = _gradient_sums(norm, dy, activated, masked)
    return channel_kernel(
        f"{norm.name}.sums",
        (positions, channels),
        region,
        sources=sources,
        steps=steps,
        targets=targets,
        small_sources={"statistics": norm.statistics},
        small_temporaries={"sums": 2, "work": 1},
        small_targets={"dgamma": gradients[0], "dbeta": gradients[1], "factors": norm.factors},
        rows=_factor_rows(positions),
    )


def _gradient_sums(
    norm: BatchNorm, dy: Tensor, activated: Tensor | None, masked: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[EachStep | SumStep]]:
    """Sources, targets and steps of the sums over positions of the backward pass."""
    steps: list[EachStep | SumStep] = []
    inner = "dy"
    sources, targets = {"dy": dy, "x": norm.x}, {}
    if activated is not None:
        assert masked is not None, "a masked gradient needs a place"
        inner = "masked"
        sources["activated"], targets["masked"] = activated, masked
        steps.append(EachStep("dy", "masked", "activated", None, positive_only()))
    steps += [
        SumStep(inner, "sums", 0),
        SumStep(
            "x",
            "sums",
            1,
            inner,
            "statistics",
            {"addend": Addend.COEFFICIENT, "factor": Factor.Y},
        ),
    ]
    return sources, targets, steps


def _factor_rows(positions: int) -> list[RowStep]:
    """Steps from these sums to the gradients of scale and bias, and factors of the input's."""
    times_y = {"factor": Factor.Y}
    return [
        RowStep(("sums", 0), ("dbeta", 0)),
        RowStep(("sums", 1), ("dgamma", 0), ("statistics", 4), times_y),
        RowStep(("statistics", 0), ("factors", 0)),
        RowStep(("dgamma", 0), ("work", 0), ("statistics", 4), times_y),
        _scaled(("work", 0), ("work", 0), -1 / positions),
        RowStep(("work", 0), ("factors", 1), ("statistics", 1), times_y),
        RowStep(("statistics", 1), ("factors", 2)),
        _scaled(("sums", 0), ("work", 0), -1 / positions),
        RowStep(("work", 0), ("factors", 3), ("statistics", 1), times_y),
    ]


def sums_of_gradients(
    norm: BatchNorm,
    dy: Tensor,
    total: Tensor,
    region: Region,
    *,
    activated: Tensor | None = None,
    masked: Tensor | None = None,
) -> VectorKernel:
    """The two sums over this device's positions that the backward pass needs, as two rows."""
    sources, targets, steps = _gradient_sums(norm, dy, activated, masked)
    return channel_kernel(
        f"{norm.name}.sums",
        positions_by_channels(norm.x),
        region,
        sources=sources,
        steps=steps,
        targets=targets,
        small_sources={"statistics": norm.statistics},
        small_temporaries={"sums": 2},
        small_targets={"total": total},
        rows=[RowStep(("sums", row), ("total", row)) for row in range(2)],
    )


def factors_of_sums(
    norm: BatchNorm,
    total: Tensor,
    gradients: tuple[Tensor, Tensor],
    positions: int,
    region: Region,
) -> VectorKernel:
    """The gradients of scale and bias, and factors of the input's, from sums over `positions`."""
    return rows_kernel(
        f"{norm.name}.factors",
        norm.x.shape[-1],
        region,
        sources={"sums": total, "statistics": norm.statistics},
        targets={"dgamma": gradients[0], "dbeta": gradients[1], "factors": norm.factors},
        rows=_factor_rows(positions),
        temporaries={"work": 1},
    )


def input_gradient(norm: BatchNorm, dy: Tensor, dx: Tensor, region: Region) -> VectorKernel:
    """``dx`` from the kept factors; `dy` is the gradient of the normalisation's result."""
    settings = {
        "addend": Addend.COEFFICIENT,
        "factor": Factor.COEFFICIENT,
        "second": Second.COEFFICIENT,
        "initial": Initial.COEFFICIENT,
    }
    return channel_kernel(
        f"{norm.name}.dx",
        positions_by_channels(norm.x),
        region,
        sources={"x": norm.x, "dy": dy},
        steps=[EachStep("x", "dx", "dy", "factors", settings)],
        targets={"dx": dx},
        small_sources={"factors": norm.factors},
    )


def _scaled(x: tuple[str, int], target: tuple[str, int], factor: float) -> RowStep:
    """``target = x * factor``."""
    settings = {"factor": Factor.CONSTANT, "constants": (Constant(), Constant(factor))}
    return RowStep(x, target, settings=settings)


def _moved(
    x: tuple[str, int], average: tuple[str, int], momentum: float, *, negate: bool = False
) -> RowStep:
    """``average = average * (1 - momentum) + x * momentum``; with ``-x`` for ``x`` if `negate`."""
    settings = {
        "negate_x": negate,
        "factor": Factor.CONSTANT,
        "second": Second.CONSTANT,
        "constants": (Constant(), Constant(momentum), Constant(1 - momentum)),
    }
    return RowStep(x, average, average, settings)

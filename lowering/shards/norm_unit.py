"""The unit of a batch normalisation whose statistics are those of several devices' rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.kernels import normalisation
from fpgapipe.lowering.shards.collectives import Chain, all_sum
from fpgapipe.lowering.shards.exchange import SharedBatchNorm
from fpgapipe.lowering.tiling.channels import small
from fpgapipe.lowering.units.layers.step_units import NormUnit, norm_unit
from fpgapipe.lowering.units.registry import Surroundings, runs

if TYPE_CHECKING:
    from fpgapipe.lowering.kernels.normalisation import BatchNorm
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.network.graph import Layer


class SharedNormUnit(NormUnit):
    """Batch normalisation over rows of several devices, with what follows it."""

    @property
    def shared(self) -> SharedBatchNorm:
        """The layer's operator."""
        operator = self.layers[0].operator
        assert isinstance(operator, SharedBatchNorm)
        return operator

    @property
    def num_values(self) -> int:
        """See `NormUnit`: the values on all devices."""
        own, all_ = self.shared.rows
        return super().num_values // own * all_

    def _total(self, step: MicroBatch, name: str, rows: int) -> Tensor:
        total = small(f"{self.layers[0].name}.{name}", rows, self.in_shape[1])
        return step.tensor(total.name, total.shape, FP32)

    def _sum(self, step: MicroBatch, number: int, total: Tensor, channel: Channel) -> None:
        """Add the kernels that add up a tensor over the devices."""
        operator = self.shared
        coming = step.tensor(f"{self.layers[0].name}.coming{number}", total.shape, FP32)
        name = f"{self.layers[0].name}.sum{number}"
        all_sum(
            step, Chain(operator.member, operator.number + number, channel, name), total, coming
        )

    def add_statistics(self, step: MicroBatch, norm: BatchNorm) -> None:
        """See `NormUnit`."""
        count = self.num_values
        region = step.region
        values, squares = (self._total(step, name, 1) for name in ("values", "squares"))
        step.add(normalisation.sum_of_values(norm, values, region))
        self._sum(step, 0, values, Channel.ACTIVATIONS)
        step.add(normalisation.mean_of_sum(norm, values, count, region))
        step.add(normalisation.sum_of_squares(norm, squares, region))
        self._sum(step, 1, squares, Channel.ACTIVATIONS)
        step.add(normalisation.statistics_of_sum(norm, squares, count, region))

    def add_sums(
        self,
        step: MicroBatch,
        norm: BatchNorm,
        dy: Tensor,
        gradients: tuple[Tensor, Tensor],
        activated: Tensor | None,
        masked: Tensor | None,
    ) -> None:
        """See `NormUnit`."""
        total = self._total(step, "gradient sums", 2)
        step.add(normalisation.sums_of_gradients(
            norm, dy, total, step.region, activated=activated, masked=masked))  # fmt: skip
        self._sum(step, 2, total, Channel.GRADIENTS)
        count = self.num_values
        step.add(normalisation.factors_of_sums(norm, total, gradients, count, step.region))


@runs("shared_batch_norm")
def _shared_norm(layer: Layer, around: Surroundings) -> Unit:
    plain = norm_unit(layer, around)
    return SharedNormUnit(plain.layers, plain.residual, plain.relu)

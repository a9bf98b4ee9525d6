"""Which unit runs a convolution or linear layer, and with which layers behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.units.images.volume_unit import TransposedVolumeUnit, VolumeUnit
from fpgapipe.lowering.units.integer_units import IntegerProductUnit
from fpgapipe.lowering.units.layers.depthwise_unit import DepthwiseUnit, is_depthwise
from fpgapipe.lowering.units.layers.grouped_unit import GroupedUnit
from fpgapipe.lowering.units.layers.step_units import ProductUnit, slope_of
from fpgapipe.lowering.units.layers.transposed_unit import TransposedUnit
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.network.graph import Layer


@runs("conv", "linear")
def _product(layer: Layer, around: Surroundings) -> Unit:
    follower = around.only_reader(layer.name)
    is_grouped = isinstance(layer.operator, ops.Conv) and layer.operator.groups > 1
    if follower is not None and isinstance(follower.operator, ops.Rescale) and not is_grouped:
        return IntegerProductUnit((layer, follower))
    if isinstance(layer.operator, ops.Conv) and len(layer.operator.kernel) > 2:
        return VolumeUnit((layer,))
    if is_depthwise(layer.operator, layer.input_tensors[0].shape):
        return DepthwiseUnit((layer,))
    if is_grouped:
        return GroupedUnit((layer,))
    slope = slope_of(follower) if follower is not None else None
    if follower is None or slope is None:
        return ProductUnit((layer,))
    return ProductUnit((layer, follower), slope)


@runs("conv_transpose")
def _transposed(layer: Layer, around: Surroundings) -> Unit:
    operator = layer.operator
    assert isinstance(operator, ops.ConvTranspose)
    if len(operator.kernel) > 2:
        return TransposedVolumeUnit((layer,))
    return TransposedUnit((layer,))

"""The tensors of a training step: micro-batches' own ones, parameters, gradients and parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.program.boundary import Part, StageUnits
from fpgapipe.lowering.program.parameter_layout import stored_as
from fpgapipe.lowering.program.share import Share
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.layouts import PLAIN
from fpgapipe.lowering.units.network_units import layouts_of
from fpgapipe.lowering.units.tensor_names import TensorNames
from fpgapipe.lowering.units.weight_order import Order, order_of_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.network.graph import Graph, Layer, Parameter


class StepTensors:
    """The tensors that the kernels of a device's step read and write.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    options : StepOptions
    units : sequence of Unit
        All units of the network.
    slots : mapping of int to int
        Slot of each micro-batch.
    num_microbatches : int
        Number of micro-batches of the step.
    part : Part, optional
        Part of the network that the device computes; all of it if left out.
    share : Share, optional
        What the device has of a network that several devices compute together.

    Attributes
    ----------
    graph, options, num_microbatches
    layouts : Layouts
        Layouts of all values of the network.
    names : TensorNames
    tensors : dict of str to Tensor
    stored : dict of str to Stored
        The parameters.
    """

    def __init__(
        self,
        graph: Graph,
        options: StepOptions,
        units: Sequence[Unit],
        slots: Mapping[int, int],
        num_microbatches: int,
        part: Part | None = None,
        share: Share | None = None,
    ) -> None:
        self.graph = graph
        self.options = options
        self.layouts = layouts_of(graph, units)
        self.names = TensorNames(graph)
        self.num_microbatches = num_microbatches
        self.tensors: dict[str, Tensor] = {}
        self.stored: dict[str, Stored] = {}
        self._slots = slots
        self._num_slots = max(slots.values()) + 1
        self.part = part or Part(StageUnits(0, 1, tuple(units)))
        self._share = share or Share()
        self._fixed: dict[str, NDArray[np.float32]] = {}  # contents of constants
        self._written: set[str] = set()  # parameters that already have a gradient
        self._repeated: set[str] = set()  # tensors of which each micro-batch has its own
        self._parts: set[str] = set()  # tensors of summands of gradients
        self._gathered: set[str] = set()  # tensors of all micro-batches
        self._unkept: set[str] = set()  # parameters whose gradients are not kept
        self._views: dict[str, tuple[str, int]] = {}  # parts of tensors, and their first bytes

    def in_slot(self, name: str, slot: int) -> str:
        """Name of a tensor in a slot."""
        return name if self._num_slots == 1 else f"{name}#{slot}"

    def of_microbatch(self, name: str, index: int) -> str:
        """Name of a tensor that exists once per micro-batch."""
        own = name if len(self._slots) == 1 else f"{name}@{index}"
        self._repeated.add(own)
        return own

    def for_all(self, name: str, part: Tensor) -> Tensor:
        """Declare the tensor that holds such a tensor of every micro-batch, one after the other."""
        shape = (self.num_microbatches * part.shape[0], *part.shape[1:])
        whole = self.declare(Tensor(f"{name} of all", shape, part.format))
        self._gathered.add(whole.name)
        return whole

    def keeps_gradient(self, parameter: Tensor) -> bool:
        """See `Builder`."""
        tied = any(tie.parameter == parameter.name for tie in self.part.ties)
        return self.options.clips or tied or self._share.is_summed(parameter.name)

    def view(self, whole: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
        """See `Builder`."""
        name = f"{whole.name}[{first}:]"
        self._views[name] = whole.name, first * whole.element_bytes
        return Tensor(name, shape, whole.format)

    def gradient_buffer(self, parameter: Tensor, number: int, shape: tuple[int, ...]) -> Tensor:
        """See `Builder`."""
        self._unkept.add(parameter.name)
        whole = Tensor(f"{parameter.name}.gradient{number}", shape)
        self._parts.add(self.tensors.setdefault(whole.name, whole).name)
        return whole

    def fix(self, tensor: Tensor, values: NDArray[np.float32]) -> None:
        """See `Builder`."""
        self._fixed[self.declare(tensor).name] = values

    def declare(self, tensor: Tensor) -> Tensor:
        """Register a tensor that needs a place in memory; tensors of one name must be equal."""
        found = self.tensors.setdefault(tensor.name, tensor)
        assert tensor.name not in self.stored, f"tensor {tensor.name} is a parameter"
        assert found == tensor, f"tensor {tensor.name} is there already, and is another"
        return tensor

    def gradient_places(self, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tensor of a parameter's gradient sum, and tensor of the next summand.

        The second is None for the first gradient, which is written directly to the sum.
        """
        total = Tensor(f"{parameter.name}.gradient", parameter.shape, FP32)
        if parameter.name not in self._written:
            self._written.add(parameter.name)
            return total, None
        part = self.declare(Tensor(f"{parameter.name}.part", parameter.shape, FP32))
        self._parts.add(part.name)
        return total, part

    # ------------------------------------------------------------------ parameters

    def parameter(self, layer: Layer, role: str) -> Tensor | None:
        """A layer's parameter, or None if the layer has none of that role."""
        for parameter in layer.parameters:
            if parameter.spec.role == role:
                return self._store(parameter)
        return None

    def weight(self, layer: Layer) -> Tensor:
        """The weight of a product, with the input channels last; of many windows, all channels."""
        (parameter,) = (each for each in layer.parameters if each.spec.role == "weight")
        return self._store(parameter, order_of_weight(layer))

    def _store(self, parameter: Parameter, order: Order | None = None) -> Tensor:
        # The last axis has the layout of the unit's input.
        layout = order or self.layouts.parameters.get(parameter.name, PLAIN)
        stored = stored_as(parameter, layout, self._share.part(parameter.name))
        found = self.stored.setdefault(parameter.name, stored)
        assert found == stored, f"parameter {parameter.name} lies in two orders"
        return found.tensor

"""A training step of a network as the program of one core."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.garbage import rare_collections
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.memory.layout import Demand, Own, lay_out
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.memory.sharing import Category, KernelUse, Shareable
from fpgapipe.lowering.program.arenas import Arenas
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.program.boundary import Part
from fpgapipe.lowering.program.device_program import SUM, KernelOrigin
from fpgapipe.lowering.program.gradient_sum import GradientSum
from fpgapipe.lowering.program.lanes import EngineLane, balance_lanes, core_lanes, product_cycles
from fpgapipe.lowering.program.share import Share, averages_of
from fpgapipe.lowering.program.step_program import StepProgram
from fpgapipe.lowering.program.step_tensors import StepTensors
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.schedule.tasks import single_device, slots_of
from fpgapipe.lowering.sums.all_reduce import Member
from fpgapipe.lowering.sums.global_norm import GlobalNorm, gradients_of
from fpgapipe.lowering.sums.tied_weights import tied_sums
from fpgapipe.lowering.tiling.kernel import Kernel, Region, Tensor, words_of
from fpgapipe.lowering.units.layouts import Value, with_channels_last
from fpgapipe.lowering.units.loss_of_batch import add_loss, loss_tensors
from fpgapipe.lowering.units.microbatch import LoweredKernel, MicroBatch, phases_of
from fpgapipe.lowering.units.network_units import check_network, units_of
from fpgapipe.lowering.units.step_options import GRADIENTS, SUFFIXES, UPDATE, Scalar, StepOptions
from fpgapipe.lowering.units.unit import naming
from fpgapipe.lowering.units.update import update_kernel
from fpgapipe.plugins import expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph


class StepBuilder(StepTensors):
    """Builds the program of a step from its kernels and tensors.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    core : CoreSpec
    memory : MemorySpec
    options : StepOptions
    tasks : sequence of Task
        Tasks in the order in which they are done; backward passes come in the order of the
        micro-batches.
    part : Part, optional
        Part of the network that the device computes; all of it if left out.
    steps : sequence of int, optional
        Number of the step of each task, in non-decreasing order. A forward pass and another task of
        the same step run concurrently, each on its own GEMM engine and in its own parts of the
        scratchpad. If left out, one task runs after the other.
    num_microbatches : int, optional
        Number of micro-batches of the step, if `tasks` are only some, of a program that is only
        timed. Gradients that are computed once for all are then those of all.
    share : Share, optional
        What the device has of a network that several devices compute together.

    Attributes
    ----------
    core, memory
    lowered : list of LoweredKernel
        All kernels so far.
    random_key : int
        Number of the first of the two scalar registers that seed the random numbers.
    """

    def __init__(
        self,
        graph: Graph,
        core: CoreSpec,
        memory: MemorySpec,
        options: StepOptions,
        tasks: Sequence[Task],
        part: Part | None = None,
        steps: Sequence[int] | None = None,
        num_microbatches: int | None = None,
        share: Share | None = None,
    ) -> None:
        self.core = core
        self.memory = memory
        self._lanes = core_lanes(core, 1 if steps is None else 2)
        self.random_key = int(Scalar.RANDOM_SEED)
        self.undecayed = options.without_decay(graph)
        self.lowered: list[LoweredKernel] = []
        self._task_of: list[int] = []
        self._tasks = tuple(tasks)
        self._steps = tuple(range(len(self._tasks)) if steps is None else steps)
        self._sum: GradientSum | None = None
        self._more: list[tuple[Kernel, int]] | None = None  # of a sum, if not all are made
        self._ordered_from: int | None = None  # first kernel that keeps its place
        self._batches: dict[int, MicroBatch] = {}
        slots = slots_of(self._tasks)
        super().__init__(
            graph, options, units_of(graph), slots, num_microbatches or len(slots), part, share
        )
        units = {unit.name for unit in self.part.stage.units}
        self._outputs = tuple(name for name in graph.outputs if name in units)
        check_network(graph, train=options.train, loss=options.loss, outputs=self._outputs)
        self._losses = loss_tensors(graph, options.loss, self._outputs) if options.train else ()
        self._task = 0
        self._waiting: dict[int, list[LoweredKernel]] = {}  # weight gradients for a later task
        self._late: dict[str, tuple[str, MicroBatch, Callable[[], None]]] = {}
        self._copies: list[LoweredKernel] = []  # for the beginning of the present task

    # ------------------------------------------------------------------ lane of the present task

    @property
    def _lane(self) -> EngineLane:
        """The lane of the present task: the first for forward passes, the last for all others."""
        return self._lanes[0 if self._tasks[self._task].kind is TaskKind.F else -1]

    @property
    def product_core(self) -> CoreSpec:
        """The core, with only the part of the scratchpad that is reserved for products."""
        return replace(self.core, scratchpad=self._lane.scratchpad)

    @property
    def product_region(self) -> Region:
        """The part of the scratchpad that is reserved for products."""
        return self._lane.products

    @property
    def region(self) -> Region:
        """The part of the scratchpad that is reserved for the vector engine."""
        return self._lane.vectors

    # ------------------------------------------------------------------ kernels for later

    def add_late(self, name: str, layer: str, batch: MicroBatch, add: Callable[[], None]) -> None:
        """See `Builder`."""
        self._late[name] = layer, batch, add

    def add_copy(
        self,
        layer: str,
        kernel: Kernel,
        copy: Tensor,
        constants: Mapping[Tensor, NDArray[np.float32]],
    ) -> None:
        """Let a kernel make a copy at the beginning of the present task, unless it is there."""
        if copy.name in self.tensors:
            return
        self.declare(copy)
        for tensor, values in constants.items():
            self.fix(tensor, values)
        self._copies.append(LoweredKernel(kernel, layer=layer))

    def _add_late(self) -> None:
        """Add the kernels that come after the backward passes of all micro-batches."""
        for layer, batch, add in self._late.values():
            batch.layer = layer
            add()
            self._take(batch.lowered)
            batch.lowered = []
        self._late = {}

    # ------------------------------------------------------------------ the whole program

    def build(self) -> StepProgram:
        """Build the program."""
        with rare_collections():
            self._lower()
            return self._placed()

    @property
    def given(self) -> dict[str, Value]:
        """The values that go to the next stage, once the program is built or its demand known."""
        values = self._batches[min(self._slots)].values
        return {each.value: values[self.part.name(each)] for each in self.part.stage.after}

    def demand(self) -> Demand:
        """The program's demand for memory, which is found in less time than the program is made."""
        with rare_collections():
            self._more = []
            self._lower()
            words = [words_of(each.kernel) for each in self.lowered]
            words[-1] += sum(count * words_of(kernel) for kernel, count in self._more)
            return self._demand().with_words(words)

    def _lower(self) -> None:
        """Lower all tasks to kernels."""
        for number, task in enumerate(self._tasks):
            self._task = number
            index = task.microbatch
            if task.kind is TaskKind.F:
                self._batches[index] = self._forward(index)
            elif task.kind is TaskKind.B:
                self._take(self._backward(self._batches[index]))
            elif task.kind is TaskKind.DX:
                lowered = self._backward(self._batches[index])
                self._take(each for each in lowered if not each.is_weight)
                self._waiting[index] = [each for each in lowered if each.is_weight]
            elif task.kind is TaskKind.DW:
                self._take(self._waiting.pop(index))
            else:
                assert task.kind is TaskKind.U, f"{task} is no task of one device"
                self._add_late()
                self._update()
        self._add_late()

    def _take(self, lowered: Iterable[LoweredKernel]) -> None:
        """Add kernels that belong to the present task."""
        for each in lowered:
            self.lowered.append(each)
            self._task_of.append(self._task)

    def _forward(self, index: int) -> MicroBatch:
        """Add the forward pass of a micro-batch."""
        batch = MicroBatch(self, index, self._slots[index], len(self._batches))
        used = {name for unit in self.part.stage.units for name in unit.inputs}
        for name, tensor in self.graph.inputs.items():
            if name not in used:
                continue
            shape = tensor.shape if len(tensor.shape) != 4 else with_channels_last(tensor.shape)
            element = self.options.format_of_input(self.graph, name)
            lies = self.declare(Tensor(self.of_microbatch(name, index), shape, element))
            batch.values[name] = Value(lies, self.layouts.values[name])
        part = self.part
        for boundary in part.stage.before:
            value = part.values[boundary.value]
            batch.layer = boundary.value
            here = batch.tensor(boundary.value, value.tensor.shape, value.tensor.format)
            batch.values[boundary.value] = replace(value, tensor=here)
            for kernel in part.value_comes(boundary, here, index):
                batch.add(kernel)
        going = list(part.given)
        for unit in part.stage.units:
            batch.layer = unit.name
            with naming(unit):
                lowered = expected(unit.forward(batch), Tensor, unit.forward)
                batch.values[unit.name] = Value(lowered, self.layouts.values[unit.name])
                if unit.name in self.graph.outputs and not self.options.train:
                    batch.deliver(unit.name)
            while going and part.name(going[0]) in batch.values:  # in the order of the next stage
                boundary = going.pop(0)
                batch.add(part.sends(boundary, batch.values[part.name(boundary)].tensor, index))
        for each in self._losses:
            batch.layer = each.loss
            add_loss(batch, each, self._all_microbatches)
        self._take(self._copied(batch.lowered))
        batch.lowered = []
        return batch

    def _copied(self, lowered: list[LoweredKernel]) -> list[LoweredKernel]:
        """A task's kernels after its copies; later devices make all before their first input."""
        copies, self._copies = self._copies, []
        if self.part.stage.index == 0 or len(self._lanes) > 1:
            return copies + lowered
        self.lowered[:0], self._task_of[:0] = copies, [0] * len(copies)
        return lowered

    def _backward(self, batch: MicroBatch) -> list[LoweredKernel]:
        """Lower the backward pass of a micro-batch and return its kernels."""
        carrying = self.graph.input_gradients
        part = self.part
        for boundary in part.stage.after:
            if boundary.has_gradient:
                name = part.name(boundary)
                shape = batch.values[name].tensor.shape
                batch.layer = name
                element = part.gradient_formats[boundary.value]
                coming = batch.tensor(f"{name}.gradient", shape, element)
                for kernel in part.gradient_comes(boundary, coming, batch.index):
                    batch.add(kernel)
                batch.give(name, coming, batch.values[name].layout)
        for unit in reversed(part.stage.units):
            batch.layer = unit.name
            dy = batch.gradient(unit.name)
            learns = any(
                parameter.spec.trainable for layer in unit.layers for parameter in layer.parameters
            )
            if dy is not None and (learns or any(carrying(each.name) for each in unit.layers)):
                with naming(unit):
                    unit.backward(batch, dy)
        for boundary in part.returned:
            batch.layer = boundary.value
            dy = batch.gradient(boundary.value)
            assert dy is not None, f"{boundary.value} must get a gradient"
            batch.add(part.returns(boundary, dy, batch.index))
        lowered, batch.lowered = self._copied(batch.lowered), []
        if len(self._lanes) == 1:
            return lowered
        concurrent = sum(
            product_cycles(each)
            for each, task in zip(self.lowered, self._task_of, strict=True)
            if self._steps[task] == self._steps[self._task]
        )
        return balance_lanes(lowered, concurrent, self._lanes[0])

    def _update(self) -> None:
        """Add the optimiser's update, if there are trainable parameters."""
        learns = any(each.trainable for each in self.stored.values()) or self._share.learns
        if learns and self._share.member.num_devices > 1:
            self._sum_over_devices()
        self._sum_tied()
        clip = self._clip(learns=learns) if self.options.clips else None
        for first, count, decays in self._arenas.groups():
            wholes = (Tensor(name, (first + count,)) for name in SUFFIXES)
            parts = [self.view(each, first, (count,)) if first else each for each in wholes]
            kernel = update_kernel(self.options, parts, self.region, clip, decays=decays)
            self._take([LoweredKernel(kernel, layer=UPDATE)])

    def _clip(self, *, learns: bool) -> Tensor | None:
        """Add what computes the factor of all gradients; None if nothing is learned anywhere."""
        stage, share = self.part.stage, self._share
        has_all = stage.num_stages == 1 and not share.has_parts
        member = Member(0, 1) if has_all else self._member
        if not learns and has_all:
            return None
        elsewhere = {tie.parameter for tie in self.part.ties if tie.stages[0] != stage.index}
        if not has_all:
            elsewhere |= {name for name in self.stored if not share.counts(name)}
            self._keep_order()
        gradients = gradients_of(self.graph, self.stored, elsewhere)
        norm = GlobalNorm(member, gradients, self.region, self.declare, self.fix, self.view)
        self._take(LoweredKernel(kernel, layer=UPDATE) for kernel in norm.kernels())
        return norm.factor

    def _sum_tied(self) -> None:
        """Add up the gradients of weights that several stages have."""
        for tie in self.part.ties:
            self._keep_order()
            kernels, received = tied_sums(tie, self._member, self.core, self.region, self.view)
            self._parts |= {self.declare(each).name for each in received}
            self._take(LoweredKernel(kernel, layer=SUM) for kernel in kernels)

    def _sum_over_devices(self) -> None:
        """Add up the gradients that devices have of different samples."""
        self._sum = GradientSum(self._share, self._arenas, self.core, self.region)
        averages = [
            self.stored[name].tensor
            for name in averages_of(self.graph, self.graph.layers)
            if name in self.stored and self._share.is_summed(name)
        ]
        received = [*self._sum.received, *self._sum.foreign(averages)]
        self._parts |= {self.declare(each).name for each in received}
        self._keep_order()
        kernels, self._more = self._sum.kernels(averages, few=self._more is not None)
        self._take(LoweredKernel(kernel, layer=SUM) for kernel in kernels)

    def _keep_order(self) -> None:
        """Let all kernels from here on keep their order, since other devices wait for them."""
        if self._ordered_from is None:
            self._ordered_from = len(self.lowered)

    @property
    def _member(self) -> Member:
        """The device's place among all devices."""
        part, own = self.part, self._share.member
        if part.num_devices in (1, own.num_devices):
            return own
        return Member(part.device + own.index, part.num_devices, part.before, part.after)

    @property
    def _all_microbatches(self) -> int:
        """Number of micro-batches of the mini-batch, on all devices."""
        return len(self._slots) * self._share.sharers

    @property
    def _arenas(self) -> Arenas:
        return Arenas(
            self.stored.values(), self.options, self._unkept, self._share.summed, self.undecayed
        )

    def _demand(self) -> Demand:
        """The program's demand for memory, but for the words of its kernels."""
        own: dict[str, Own] = {}
        for each in self.stored.values():
            if not each.trainable:
                own[each.tensor.name] = Own(each.tensor.size_bytes, Category.WEIGHTS)
        own |= self._arenas.own()
        of_slot = {
            name: Shareable(self.tensors[name].size_bytes, number, batch.slot)
            for batch in self._batches.values()
            for number, name in enumerate(batch.declared)
            if name not in self._repeated
        }
        shareable: dict[str, Shareable] = {}
        for name, tensor in self.tensors.items():
            if name in of_slot:
                shareable[name] = of_slot[name]
            elif name in self._parts:
                shareable[name] = Shareable(tensor.size_bytes, len(self.tensors) + len(shareable))
            elif name not in own:
                category = Category.ACTIVATIONS if name in self._gathered else Category.HOST
                own[name] = Own(tensor.size_bytes, category, name in self._repeated)

        def whole(names: frozenset[str]) -> frozenset[str]:
            return frozenset(self._views[n][0] if n in self._views else n for n in names)

        uses = [
            KernelUse(
                task,
                whole(each.kernel.reads),
                whole(each.kernel.writes),
                0,
                each.kernel.track.is_link,
            )
            for each, task in zip(self.lowered, self._task_of, strict=True)
        ]
        return Demand(own, shareable, uses, self._tasks, self._steps, self.options.apart)

    def _moved(self, places: Mapping[str, Placed]) -> Mapping[int, Mapping[str, Placed]]:
        """Places that tensors have for some kernels only, by the numbers of these."""
        return {}

    def _placed(self) -> StepProgram:
        """Give all tensors and the program their places in memory."""
        demand = self._demand()
        layout = lay_out(demand)
        places = dict(layout.places)
        places |= self._arenas.places(places)
        for view, (whole, first) in self._views.items():
            if whole in places:
                places[view] = Placed(places[whole].begin + first, places[whole].end)
        if self._sum is not None:
            places |= self._sum.places(places[GRADIENTS].begin)
        kernels = [each.kernel for each in self.lowered]
        steps = phases_of(self.lowered, [self._steps[task] for task in self._task_of])
        moved = self._moved(places)
        assembled = assemble(kernels, places, self.core, steps, self._ordered_from, moved)
        words = np.zeros(len(kernels), np.int64)
        np.add.at(words, assembled.kernel_of, assembled.instructions.words[:-1])
        demand = demand.with_words(words.tolist())
        size = page(layout.entry + demand.program_bytes)
        first = min(self._slots)
        inputs = {
            name: tensor.shape
            for name, tensor in self.graph.inputs.items()
            if self.of_microbatch(name, first) in places
        }
        return StepProgram(
            layout.entry,
            size,
            tuple(sorted(self._slots)),
            self._all_microbatches,
            inputs,
            self._outputs if self.options.keeps_results else (),
            losses=self._losses,
            places=places,
            tensors=dict(self.tensors),
            stored=dict(self.stored),
            shared=layout.shared,
            account=layout.account(demand, size),
            index=self._member.index,
            core=self.core,
            instructions=assembled.instructions,
            kernel_of=assembled.kernel_of,
            kernels=[
                KernelOrigin(each.kernel.name, each.layer, task)
                for each, task in zip(self.lowered, self._task_of, strict=True)
            ],
            tasks=self._tasks,
            constants=self._fixed,
            graph=self.graph,
            options=self.options,
            stage=self.part.stage,
            values=dict(self._batches[first].values),
            operands=dict(self._batches[first].operands),
            gradients=dict(self._batches[first].gradients),
            demand=demand,
        )


def build_step(
    graph: Graph,
    core: CoreSpec,
    memory: MemorySpec | None = None,
    options: StepOptions | None = None,
    tasks: Sequence[Task] | None = None,
) -> StepProgram:
    """Compile a training step, or inference, for one device.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    core : CoreSpec
    memory : MemorySpec, optional
        Speed of the memory, with which run times are estimated.
    options : StepOptions, optional
    tasks : sequence of Task, optional
        Forward and backward passes in their order, and the update; one micro-batch if left out.

    Raises
    ------
    UserError
        If the core cannot run a layer.
    NotImplementedError
        If a layer does not fit the core.
    """
    options = options or StepOptions()
    tasks = tasks or single_device(1, train=options.train)
    return StepBuilder(graph, core, memory or MemorySpec(), options, tasks).build()

"""The unit by which devices that have rows of images exchange those at their borders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.parts import Rows, copy_rows
from fpgapipe.lowering.shards.degrees import Range, common
from fpgapipe.lowering.shards.exchange import Halo
from fpgapipe.lowering.shards.exchange_units import ExchangeUnit
from fpgapipe.lowering.units.layouts import Layout, channels_last
from fpgapipe.lowering.units.registry import runs_alone

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class _Segment:
    """Rows of which a neighbour has a copy, and the neighbour's link and device."""

    rows: Range
    link: int
    device: int


@runs_alone("halo")
class HaloUnit(ExchangeUnit):
    """The rows of an image that a device needs, of which its neighbours have some."""

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {name: channels_last(self.in_shape) for name in self.inputs}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape)

    @property
    def halo(self) -> Halo:
        """The layer's operator."""
        operator = self.operator
        assert isinstance(operator, Halo)
        return operator

    def _segments(self, *, goes: bool) -> list[_Segment]:
        """Rows that go to neighbours, or come from them, in the forward pass."""
        halo, member = self.halo, self.halo.member
        found = []
        for device, link in (
            (member.index - 1, member.before),
            (member.index + 1, member.after),
        ):
            if 0 <= device < member.num_devices:
                owner, reader = (member.index, device) if goes else (device, member.index)
                rows = common(halo.has[owner], halo.needs[reader])
                if rows[0] < rows[1]:
                    found.append(_Segment(rows, link, device))
        return found

    def _move(
        self,
        step: MicroBatch,
        source: tuple[Tensor, Range],
        target: tuple[Tensor, Range],
        rows: Range,
    ) -> None:
        """Add the kernel that copies rows of images from one tensor to another.

        Parameters
        ----------
        step : MicroBatch
        source, target : (Tensor, Range)
            Tensors, and the rows that they have.
        rows : Range
            Rows that are copied, if there are any.
        """
        count = rows[1] - rows[0]
        if not count:
            return
        samples, channels, _, width = self.in_shape
        line = channels * width
        read, written = (
            Rows((rows[0] - begin) * line, (end - begin) * line)
            for _, (begin, end) in (source, target)
        )
        size = samples, count * line
        name = f"{self.name}.rows"
        step.add(copy_rows(name, source[0], target[0], size, read, written, step.region))

    def _piece(self, step: MicroBatch, name: str, rows: Range) -> Tensor:
        samples, channels, _, width = self.in_shape
        shape = (samples, rows[1] - rows[0], width, channels)
        return step.tensor(f"{self.name}.{name}", shape, step.options.activations)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        halo = self.halo
        x = step.take(self, self.inputs[0])
        index = halo.member.index
        has, needs = halo.has[index], halo.needs[index]
        chain = self.chain(self.name, Channel.ACTIVATIONS)
        for each in self._segments(goes=True):
            piece = self._piece(step, f"to{each.device}", each.rows)
            self._move(step, (x, has), (piece, each.rows), each.rows)
            chain.transfer(step, Opcode.SEND, each.link, index, piece)
        step.begin_phase()
        came = []
        for each in self._segments(goes=False):
            piece = self._piece(step, f"from{each.device}", each.rows)
            chain.transfer(step, Opcode.RECEIVE, each.link, each.device, piece)
            came.append((piece, each.rows))
        step.begin_phase()
        samples, channels, rows, width = self.out_shape
        y = step.activation(self.name, (samples, rows, width, channels))
        self._move(step, (x, has), (y, needs), common(has, needs))
        for piece, taken in came:
            self._move(step, (piece, taken), (y, needs), taken)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`.

        A device's gradient of a row is the sum of its own and those of its neighbours, in the order
        own, before, behind.
        """
        halo = self.halo
        index = halo.member.index
        has, needs = halo.has[index], halo.needs[index]
        x = step.take(self, self.inputs[0])
        chain = self.chain(f"{self.name}.gradient", Channel.GRADIENTS)
        for each in self._segments(goes=False):
            piece = self._piece(step, f"gradient to{each.device}", each.rows)
            self._move(step, (dy, needs), (piece, each.rows), each.rows)
            chain.transfer(step, Opcode.SEND, each.link, index, piece)
        step.begin_phase()
        came = []
        for each in self._segments(goes=True):
            piece = self._piece(step, f"gradient from{each.device}", each.rows)
            chain.transfer(step, Opcode.RECEIVE, each.link, each.device, piece)
            came.append((piece, each))
        step.begin_phase()
        dx = step.tensor(f"{self.name}.dx", x.shape, step.options.activations)
        done = common(has, needs)
        self._move(step, (dy, needs), (dx, has), done)
        for piece, each in came:
            rows = each.rows
            for rest in ((rows[0], done[0]), (done[1], rows[1])):
                self._move(step, (piece, rows), (dx, has), common(rest, rows))
            both = common(rows, done)
            if both[0] < both[1]:
                own = self._piece(step, f"gradient own{each.device}", both)
                other = self._piece(step, f"gradient other{each.device}", both)
                self._move(step, (dx, has), (own, both), both)
                self._move(step, (piece, rows), (other, both), both)
                step.add(activation.add(f"{self.name}.add", own, other, own, step.region))
                self._move(step, (own, both), (dx, has), both)
            done = (min(done[0], rows[0]), max(done[1], rows[1])) if done[0] < done[1] else rows
        step.give_gradient(self, self.inputs[0], dx)

"""Exchanges among the devices of a chain within a pass, as kernels of each device.

Two exchanges are enough for large values. In an **all-gather**, each device has a piece, and all
get all pieces: every device sends its own piece to both sides, and passes on what comes from one
side to the other. In a **reduce-scatter**, each device has a summand of every piece, and gets the
sum of one piece. The summands of the devices before it are added up on their way up the chain,
those of the devices behind it on their way down::

    sum of piece k = ((g0 + g1 + ... + g(k-1)) + gk) + (g(k+1) + (... + g(n-1)))

where the sums on the way up begin at the first device, and those on the way down at the last. The
order depends only on the number of devices, so all devices, models and simulations have the same
bits. A sum is rounded to the format of the gradients each time it moves on.

In both, every wire carries a piece once in one direction. Small tensors are added up in the order
of the devices on their way up the chain, and the sum goes back (`all_sum`).

Kernels are added in *phases* (`MicroBatch.begin_phase`). All that a device sends without waiting
belongs to the phase before that in which it reads what comes; what it sends up belongs to the phase
before that in which it waits for what comes down. So a device's work for another one never stands
behind work that waits for that other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.optimiser import accumulate
from fpgapipe.lowering.sums.transfers import TransferKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.sums.all_reduce import Member
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch

PARTS = 2
"""Most parts of a piece; the queues of a link have room for those of several pieces."""


@dataclass(frozen=True)
class Chain:
    """A device's place in an exchange.

    Attributes
    ----------
    member : Member
    number : int
        Number of the exchange, the same on all devices.
    channel : Channel
        Channel of the links.
    name : str
        Name of the kernels.
    """

    member: Member
    number: int
    channel: Channel
    name: str

    def transfer(
        self, step: MicroBatch, opcode: Opcode, link: int, piece: int, tensor: Tensor
    ) -> None:
        """Add the kernel that sends or receives a piece."""
        tag = (self.number * self.member.num_devices + piece) << 12 | step.position & 0xFFF
        name = f"{self.name}.{opcode.name.lower()}"
        step.add(TransferKernel(name, opcode, link, self.channel, tensor, tag, PARTS))


def all_gather(step: MicroBatch, chain: Chain, pieces: Sequence[Tensor]) -> None:
    """Add the kernels after which a device has all pieces.

    Parameters
    ----------
    step : MicroBatch
    chain : Chain
    pieces : sequence of Tensor
        Tensor for the piece of each device; the device's own piece is there already.
    """
    member = chain.member
    own, last = member.index, member.num_devices - 1
    if own < last:
        chain.transfer(step, Opcode.SEND, member.after, own, pieces[own])
    if own > 0:
        chain.transfer(step, Opcode.SEND, member.before, own, pieces[own])
    step.begin_phase()
    # The nearest device's piece comes first, on either side.
    for piece in range(own - 1, -1, -1):
        chain.transfer(step, Opcode.RECEIVE, member.before, piece, pieces[piece])
        if own < last:
            chain.transfer(step, Opcode.SEND, member.after, piece, pieces[piece])
    for piece in range(own + 1, last + 1):
        chain.transfer(step, Opcode.RECEIVE, member.after, piece, pieces[piece])
        if own > 0:
            chain.transfer(step, Opcode.SEND, member.before, piece, pieces[piece])
    step.begin_phase()


def reduce_scatter(
    step: MicroBatch, chain: Chain, pieces: Sequence[Tensor], coming: Sequence[Tensor]
) -> Tensor:
    """Add the kernels that sum up a device's own piece of all devices' summands.

    Parameters
    ----------
    step : MicroBatch
    chain : Chain
    pieces : sequence of Tensor
        The device's summand of each piece, which stays as it is.
    coming : sequence of Tensor
        Tensors for what comes of each piece: one for each piece of another device, and two for the
        device's own, that from the device before it first. Sums replace what has come.

    Returns
    -------
    Tensor
        One of `coming`, which has the sum.
    """
    member = chain.member
    own, last = member.index, member.num_devices - 1

    def added(piece: int, link: int, came: Tensor, summand: Tensor) -> Tensor:
        chain.transfer(step, Opcode.RECEIVE, link, piece, came)
        step.add(activation.add(f"{chain.name}.add", summand, came, came, step.region))
        return came

    # The piece of the farthest device goes first, since its way is the longest.
    if own == 0:
        for piece in range(last, 0, -1):
            chain.transfer(step, Opcode.SEND, member.after, piece, pieces[piece])
    if own == last:
        for piece in range(last):
            chain.transfer(step, Opcode.SEND, member.before, piece, pieces[piece])
    step.begin_phase()
    total = pieces[own]
    if own > 0:
        for piece in range(last, own, -1):
            came = added(piece, member.before, coming[piece], pieces[piece])
            chain.transfer(step, Opcode.SEND, member.after, piece, came)
        total = added(own, member.before, coming[own], total)
    step.begin_phase()
    if own < last:
        for piece in range(own):
            came = added(piece, member.after, coming[piece], pieces[piece])
            chain.transfer(step, Opcode.SEND, member.before, piece, came)
        total = added(own, member.after, coming[-1], total)
    step.begin_phase()
    return total


def all_sum(step: MicroBatch, chain: Chain, total: Tensor, coming: Tensor) -> None:
    """Add the kernels that put the sum over all devices in the place of each one's summand.

    Parameters
    ----------
    step : MicroBatch
    chain : Chain
    total : Tensor
        The device's summand, which the sum replaces; FP32.
    coming : Tensor
        A tensor of this shape for what comes.
    """
    member = chain.member
    own, last = member.index, member.num_devices - 1
    if own == 0 < last:
        chain.transfer(step, Opcode.SEND, member.after, 0, total)
    step.begin_phase()
    if own > 0:
        chain.transfer(step, Opcode.RECEIVE, member.before, 0, coming)
        step.add(accumulate(f"{chain.name}.add", total, coming, step.region))
        if own < last:
            chain.transfer(step, Opcode.SEND, member.after, 0, total)
    step.begin_phase()
    if own < last:
        chain.transfer(step, Opcode.RECEIVE, member.after, 0, total)
    if own > 0:
        chain.transfer(step, Opcode.SEND, member.before, 0, total)
    step.begin_phase()

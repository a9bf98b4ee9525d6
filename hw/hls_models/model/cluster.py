"""Bit-exact model of several devices joined by links, whose cores run alternately.

A core runs until it needs a packet that has not arrived. Links lose nothing and hold any number of
packets. The model thus runs one of the orders that are possible on the cluster: each device runs
its instructions in program order, and a RECEIVE at the latest when its bytes are needed, or when it
is one into the scratchpad.
"""

from collections.abc import Mapping, Sequence

from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS

End = tuple[int, int]
"""End of a link: number of the device, and number of its link."""


class ClusterDeadlock(Exception):
    """Devices wait for each other, or for packets that nobody sends.

    Attributes
    ----------
    waiting : dict
        Number of the waiting instruction for each device that has not ended.
    """

    def __init__(self, waiting: dict[int, int], message: str) -> None:
        super().__init__(message)
        self.waiting = waiting


def peers_of(wiring: Sequence[tuple[End, End]], models: Sequence[CoreModel]) -> dict[End, End]:
    """Return the other end for each joined end of a link.

    Raises
    ------
    ValueError
        If an end does not exist or is named twice.
    """
    peers: dict[End, End] = {}
    for pair in wiring:
        for device, link in set(pair):
            name = f"link {link} of device {device}"
            if not 0 <= device < len(models) or not 0 <= link < len(models[device].links):
                raise ValueError(f"wiring must be of links that exist, not {name}")
            if (device, link) in peers:
                raise ValueError(f"wiring must name {name} once")
        peers |= {pair[0]: pair[1], pair[1]: pair[0]}
    return peers


def run_cluster(
    models: Sequence[CoreModel],
    programs: Sequence[Sequence[Instruction]],
    wiring: Sequence[tuple[End, End]],
) -> None:
    """Run a program on each device, until all have ended.

    Parameters
    ----------
    models : sequence of CoreModel
    programs : sequence of sequence of Instruction
        One program for each device.
    wiring : sequence of pairs of (device, link)
        Pairs of ends that are joined; each end occurs once. An end that is joined to itself
        receives the packets that it sends.

    Raises
    ------
    ClusterDeadlock
        If some devices have not ended and none can continue.
    CoreError
        For the reasons of `CoreModel.run`.
    ValueError
        If the wiring is wrong.
    """
    peers = peers_of(wiring, models)
    at = [0] * len(models)
    going = list(range(len(models)))
    moved = True
    while going and moved:
        moved = False
        for device in going.copy():
            begin, model, program = at[device], models[device], programs[device]
            at[device] = model.run(program, begin)
            moved |= _deliver(models, device, peers) or at[device] != begin
            is_at_end = at[device] == len(program) or program[at[device]].opcode is Opcode.END
            if is_at_end and model.catch_up():
                going.remove(device)
                moved = True
    if going:
        late = {device: _waiting(models[device], programs[device], at[device]) for device in going}
        raise ClusterDeadlock(
            {device: index for device, (index, _) in late.items()},
            "; ".join(_reason(device, *each, peers) for device, each in late.items()),
        )


def _waiting(model: CoreModel, program: Sequence[Instruction], at: int) -> tuple[int, Instruction]:
    """The RECEIVE that a device waits for, which stands at an instruction or at the end."""
    here = program[at] if at < len(program) else None
    if here is not None and here.opcode is Opcode.RECEIVE:
        late = [each for each in model.late if each[1].engine == here.engine]
        return late[0] if late else (at, here)
    return model.late[0]


def _deliver(models: Sequence[CoreModel], device: int, peers: Mapping[End, End]) -> bool:
    """Move a device's packets to the other ends, and return whether there were any."""
    found = False
    for link, port in enumerate(models[device].links):
        for channel in range(NUM_CHANNELS):
            out = port.out[channel]
            if not out:
                continue
            if (device, link) not in peers:
                raise ValueError(
                    f"device {device} sends on link {link}, which is joined to nothing"
                )
            other, other_link = peers[device, link]
            models[other].links[other_link].inbox[channel].extend(out)
            out.clear()
            found = True
    return found


def _reason(device: int, index: int, instruction: Instruction, peers: Mapping[End, End]) -> str:
    link, body = instruction.engine, instruction.body
    what = f"device {device} waits at instruction {index} (RECEIVE[{link}]) for stream "
    what += f"{body['stream']} on channel {body['channel']} of "
    if (device, link) not in peers:
        return what + "a link that is joined to nothing"
    other, other_link = peers[device, link]
    return what + f"device {other}'s link {other_link}"

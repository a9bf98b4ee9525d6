"""Opens the way to each device of a cluster, as the addresses in the cluster file say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fpgapipe.boards.cluster import load_cluster
from fpgapipe.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.cluster import Cluster
    from fpgapipe.boards.schema import Board
    from fpgapipe.host.driver.transport import Transport
    from fpgapipe.partition.plan import Plan


def _xdma(address: Address, board: Board, folder: Path) -> Transport:
    from fpgapipe.host.transports.xdma import XdmaTransport

    if not address.device.isdecimal():
        raise UserError(f"the card must be a number, as in /dev/xdma0_user, not {address.device}")
    return XdmaTransport(
        int(address.device),
        registers=address.registers,
        memory=address.memory,
        memory_bytes=address.memory_bytes or board.device_spec().memory_bytes,
    )


def _pynq(address: Address, board: Board, folder: Path) -> Transport:
    from fpgapipe.host.transports.pynq_board import PynqTransport

    bitstream = folder / address.bitstream if address.bitstream else None
    registers = address.registers
    if not registers and board.packaging and board.packaging.pynq:
        registers = int(board.packaging.pynq.registers, 16)  # as in the package's design
    return PynqTransport(registers, bitstream)


def _xrt(address: Address, board: Board, folder: Path) -> Transport:
    from fpgapipe.host.package.shim import SHIM_LIBRARY
    from fpgapipe.host.package.vitis import instance
    from fpgapipe.host.package.wrapper import CORE
    from fpgapipe.host.transports.xrt import XrtTransport

    if address.bitstream is None:
        raise UserError("--backend xrt needs the key bitstream, the path of the .xclbin")
    bitstream = folder / address.bitstream
    library = bitstream.parent / SHIM_LIBRARY
    return XrtTransport(library, address.device, bitstream, f"{CORE}:{{{instance(CORE)}}}")


def _litex(address: Address, board: Board, folder: Path) -> Transport:
    from fpgapipe.host.transports.litex import LitexTransport

    if address.csr is None:
        raise UserError(
            "--backend litex needs the key csr, the path of the csr.csv that was made with the "
            "bitstream"
        )
    return LitexTransport(
        address.device,
        folder / address.csr,
        memory=address.memory,
        memory_bytes=address.memory_bytes,
    )


def _agent(address: Address, board: Board, folder: Path) -> Transport:
    raise UserError("--backend agent needs the key agent, at which the device is served")


OPENED: dict[str, Callable[[Address, Board, Path], Transport]] = {
    "agent": _agent,
    "litex": _litex,
    "pynq": _pynq,
    "xdma": _xdma,
    "xrt": _xrt,
}
"""For each transport to boards, the function that opens a device, given the file's folder."""

TRANSPORTS = tuple(OPENED)


def open_device(kind: str, name: str, address: Address, board: Board, folder: Path) -> Transport:
    """Open a device of a cluster file, through the agent that its address names.

    Parameters
    ----------
    kind : str
        One of `TRANSPORTS`: that of the device, or ``agent`` for whatever the agent has.
    name : str
        Name of the device.
    address : Address
    board : Board
    folder : Path
        Folder of the cluster file.

    Raises
    ------
    UserError
        If the device cannot be opened, or its agent has another one under this name.
    """
    if address.agent is None:
        return OPENED[kind](address, board, folder)
    from fpgapipe.host.transports.agent import AgentTransport
    from fpgapipe.host.transports.agent_secrets import token_from

    assert address.ca is not None, "an address with an agent has it"
    file = address.token_file
    token = token_from(folder / file if file is not None else None)
    way = AgentTransport(address.agent, name, folder / address.ca, token)
    by = way.kind if kind == "agent" else kind
    if (way.kind, way.board) != (by, board.name):
        way.close()
        raise UserError(
            f"the agent at {address.agent} serves {name} as a {way.board} by {way.kind}, and here "
            f"it is a {board.name} by {by}"
        )
    return way


def open_transports(kind: str, plan: Plan, cluster: Cluster, file: Path) -> list[Transport]:
    """Open the devices of a plan, in the order of its stages.

    Parameters
    ----------
    kind : str
        One of `TRANSPORTS`.
    plan : Plan
    cluster : Cluster
        Cluster with addresses. Its devices are those of the plan if they have the same names;
        otherwise they are taken in their order.
    file : Path
        The cluster file.

    Raises
    ------
    UserError
        If devices or addresses are missing, or a device has another board than the plan.
    """
    wanted = [node.device for node in plan.nodes]
    known = {name: index for index, name in enumerate(cluster.device_names)}
    places = [known[name] for name in wanted] if set(wanted) <= set(known) else range(len(known))
    if len(places) < len(wanted):
        raise UserError(f"{file} has {len(known)} devices, and the build needs {len(wanted)}")
    ways: list[Transport] = []
    try:
        for node, place in zip(plan.nodes, places, strict=False):
            name, board = cluster.device_names[place], cluster.boards[place]
            if board.name != node.board:
                raise UserError(
                    f"{file}: {name} is a {board.name}, and device {len(ways)} of the build is for "
                    f"a {node.board}"
                )
            address = cluster.addresses[place] if cluster.addresses else None
            if address is None:
                raise UserError(f"{file}: {name} has no address, by which {kind} would reach it")
            ways.append(open_device(kind, name, address, board, file.parent))
    except BaseException:
        close_all(ways)
        raise
    return ways


def close_all(ways: Sequence[Transport]) -> None:
    """Close transports."""
    for way in ways:
        way.close()


def transports_of(
    backend: str, cluster_file: Path | str | None
) -> Callable[[Plan], list[Transport]] | None:
    """Function that opens the boards of a plan; None for backends without boards.

    Raises
    ------
    UserError
        If there is a cluster file without boards, or the other way round.
    """
    if backend not in TRANSPORTS:
        if cluster_file is not None:
            raise UserError(f"--cluster has addresses of boards, and --backend {backend} has none")
        return None
    if cluster_file is None:
        raise UserError(
            f"--backend {backend} needs --cluster FILE, which says at which address each board is "
            "reached (docs/boards.md)"
        )
    file = Path(cluster_file)
    cluster = load_cluster(file)
    return lambda plan: open_transports(backend, plan, cluster, file)

"""Opens the way to each device of a cluster, as the addresses in the cluster file say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fpgapipe.boards.cluster import load_cluster
from fpgapipe.errors import UserError, counted
from fpgapipe.host.driver.transport import BoardTransport, Transport
from fpgapipe.plugins import Registry, subclass_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.metadata import EntryPoint

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.cluster import Cluster
    from fpgapipe.boards.schema import Board
    from fpgapipe.partition.plan import Plan


WITHOUT_BOARDS = ("sim", "model", "torch", "torch-mx")
"""Backends that are no transports to boards."""


def _transport(entry: EntryPoint, found: Any) -> type[BoardTransport]:
    kind = subclass_of(BoardTransport)(entry, found)  # type: ignore[type-abstract]
    if entry.name in WITHOUT_BOARDS:
        raise TypeError("has the name of a backend without boards")
    if kind.name != entry.name:
        raise TypeError(f"has the name {kind.name!r} of its own")
    return kind


TRANSPORTS: Registry[type[BoardTransport]] = Registry(
    "fpgapipe.transports",
    "transport",
    {
        "agent": "fpgapipe.host.transports.agent:AgentTransport",
        "litex": "fpgapipe.host.transports.litex:LitexTransport",
        "pynq": "fpgapipe.host.transports.pynq_board:PynqTransport",
        "xdma": "fpgapipe.host.transports.xdma:XdmaTransport",
        "xrt": "fpgapipe.host.transports.xrt:XrtTransport",
    },
    _transport,
)
"""The transports to boards, which are also the names of backends."""


def backend_names() -> list[str]:
    """Names of all backends: those without boards, then the transports."""
    return [*WITHOUT_BOARDS, *TRANSPORTS.names()]


def open_device(kind: str, name: str, address: Address, board: Board, folder: Path) -> Transport:
    """Open a device of a cluster file, through the agent that its address names.

    Parameters
    ----------
    kind : str
        Name of a transport: that of the device, or ``agent`` for whatever the agent has.
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
        if address.node and not TRANSPORTS[kind].has_nodes:
            raise UserError(
                f"{name} is core {address.node} of its board, and --backend {kind} reaches one "
                "core a board"
            )
        opens = TRANSPORTS.guarded(kind, TRANSPORTS[kind].open, Transport)
        return cast("Transport", opens(address, board, folder))
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
        Name of a transport.
    plan : Plan
    cluster : Cluster
        Cluster with addresses. Its devices are those of the plan if they have the same names;
        otherwise they are taken in their order.
    file : Path
        The cluster file.

    Raises
    ------
    UserError
        If devices or addresses are missing, a device has another board than the plan, or the
        transport reaches one core a board.
    """
    wanted = [node.device for node in plan.nodes]
    known = {name: index for index, name in enumerate(cluster.device_names)}
    places = [known[name] for name in wanted] if set(wanted) <= set(known) else range(len(known))
    if len(places) < len(wanted):
        raise UserError(
            f"{file} has {counted(len(known), 'device')}, and the build needs {len(wanted)}"
        )
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
    TRANSPORTS[backend]  # one that cannot be used is refused before anything is opened
    file = Path(cluster_file)
    cluster = load_cluster(file)
    return lambda plan: open_transports(backend, plan, cluster, file)

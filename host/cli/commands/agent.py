"""``fpgapipe agent``: serves the devices of this host to runs on other hosts."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import click

import fpgapipe
from fpgapipe.boards.cluster import Cluster
from fpgapipe.errors import UserError
from fpgapipe.host.cli.options.names import Names
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.driver.transport import Transport
from fpgapipe.host.terminal.interrupts import wait_for_ctrl_c
from fpgapipe.host.transports import agent_secrets
from fpgapipe.host.transports.agent import AgentTransport
from fpgapipe.host.transports.agent_protocol import Place
from fpgapipe.host.transports.agent_server import DeviceAgent, Served, let_open_files
from fpgapipe.host.transports.opening import TRANSPORTS, open_device
from fpgapipe.host.transports.without_boards import SIMULATED, without_boards


def _kinds() -> list[str]:
    """Ways in which an agent reaches devices: all but through another agent."""
    return [*SIMULATED, *(name for name in TRANSPORTS.names() if name != AgentTransport.name)]


@command("agent", example="fpgapipe agent --new-token agent.token")
@click.argument("place", metavar="HOST:PORT", required=False)
@click.option(
    "--cluster",
    "cluster_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Cluster file; its devices with the key agent: HOST:PORT are served.",
)
@click.option("--backend", type=Names(_kinds), help="How this host reaches these devices.")
@click.option(
    "--build",
    "folder",
    metavar="DIR",
    type=click.Path(),
    help="Build whose devices are simulated or modelled, with --backend sim or model.",
)
@click.option("--certificate", metavar="FILE", help="The agent's certificate, in PEM.")
@click.option("--key", metavar="FILE", help="Key of the certificate, in PEM, without a password.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="File of the token that clients must have [default: the cluster file's token_file].",
)
@click.option("--bind", metavar="ADDRESS", help="Address to listen at [default: HOST].")
@click.option(
    "--new-token", metavar="FILE", help="Write a random token to a new file, and do nothing else."
)
def agent(
    place: str | None,
    cluster_file: str | None,
    backend: str | None,
    folder: str | None,
    certificate: str | None,
    key: str | None,
    token_file: str | None,
    bind: str | None,
    new_token: str | None,
) -> int:
    """Serve the devices of this host to other hosts, until Ctrl-C.

    Each device belongs to one client at a time. Clients have to know the token, and check the
    agent's certificate (docs/boards.md).
    """
    if new_token is not None:
        agent_secrets.new_token(Path(new_token))
        print(f"wrote {new_token}, which only you can read; copy it to the hosts of clients")
        return 0
    if place is None or not (cluster_file and backend and certificate and key):
        raise UserError(
            "an agent needs HOST:PORT, --cluster, --backend, --certificate and --key; see "
            "'fpgapipe agent --help'"
        )
    listens = Place.of(place)
    file = Path(cluster_file)
    cluster = fpgapipe.load_cluster(file)
    own = [
        index
        for index, address in enumerate(cluster.addresses)
        if address is not None and address.agent is not None and Place.of(address.agent) == listens
    ]
    if not own:
        raise UserError(f"{file}: no device has the address agent: {place}")
    named = {cluster.addresses[index].token_file for index in own} - {None}  # type: ignore[union-attr]
    if token_file is None and len(named) > 1:
        raise UserError(f"{file}: devices of one agent have several token_file; name one")
    secret = Path(token_file) if token_file else next((file.parent / str(n) for n in named), None)
    token = agent_secrets.token_from(secret)
    pair = agent_secrets.own_certificate(Path(certificate), Path(key))
    devices = _devices(backend, folder, cluster, file, own)
    at = Place(bind, listens.port) if bind else listens
    let_open_files()
    with DeviceAgent(devices, at, *pair, token):
        names = ", ".join(device.name for device in devices)
        print(f"serves {names} at {at} by {backend}; Ctrl-C ends it", flush=True)
        wait_for_ctrl_c()


def _devices(
    backend: str, folder: str | None, cluster: Cluster, file: Path, own: list[int]
) -> list[Served]:
    """The devices of an agent: those of a cluster file with some numbers."""
    if (backend in SIMULATED) != (folder is not None):
        raise UserError(
            f"--backend {' and '.join(SIMULATED)} need --build, whose devices they are; others "
            "need none"
        )
    names = [cluster.device_names[index] for index in own]
    boards = [cluster.boards[index].name for index in own]
    if folder is not None:
        build = fpgapipe.open_build(Path(folder))
        stages = [(node.device, node.board) for node in build.plan.nodes]
        if not {device for device, _ in stages} <= set(names):
            stages = [(name, board) for name, (_, board) in zip(names, stages, strict=False)]
        if len(stages) < len(build.plan.nodes):
            raise UserError(
                f"{file}: an agent simulates all {len(build.plan.nodes)} devices of a build, "
                f"since they are joined by links, and only {len(names)} have its address"
            )
        world = _World(build, backend)
        return [
            Served(
                name,
                board,
                backend,
                functools.partial(world.open, number),
                functools.partial(world.close, number),
                world.accesses,
            )
            for number, (name, board) in enumerate(stages)
        ]
    served = []
    for index, name, board in zip(own, names, boards, strict=True):
        address = cluster.addresses[index]
        assert address is not None, "it names the agent"
        here = address.model_copy(update={"agent": None, "ca": None, "token_file": None})
        opens = functools.partial(
            open_device, backend, name, here, cluster.boards[index], file.parent
        )
        served.append(Served(name, board, backend, opens))
    return served


class _World:
    """Simulated devices or models of a build, made anew for the next clients when all have gone.

    Attributes
    ----------
    accesses : Lock
        Held during each access, since all run together.
    """

    def __init__(self, build: fpgapipe.Build, backend: str) -> None:
        self._build, self._backend = build, backend
        self._ways: list[Transport] = []
        self._taken: set[int] = set()
        self.accesses = threading.Lock()

    def open(self, number: int) -> Transport:
        """Give a device."""
        if not self._taken:
            self._ways = without_boards(self._build, self._backend)
        self._taken.add(number)
        return self._ways[number]

    def close(self, number: int, way: Transport) -> None:
        """Take a device back; the last one ends all."""
        self._taken.discard(number)
        if not self._taken:
            for each in self._ways:
                each.close()

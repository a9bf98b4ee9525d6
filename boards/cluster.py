"""Clusters: their boards, and how these are wired."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fpgapipe.boards.address import MOST_NODES, Address
from fpgapipe.boards.block import Block, duplicates, validated
from fpgapipe.boards.library import is_path, load_board
from fpgapipe.boards.nodes import BoardNode, BoardNodes, nodes_of
from fpgapipe.boards.quantities import one_of, text, whole, word
from fpgapipe.boards.schema import Board, Latency, LineRate
from fpgapipe.boards.wiring import PortEnd, Wiring
from fpgapipe.boards.yaml_file import Fault, Loc, read_yaml
from fpgapipe.errors import FileError, UserError, nearest, shown
from fpgapipe.hw.hls_models.spec.device import ClusterSpec, LinkSpec

MAX_DEVICES = 4096
"""Largest number of devices of a cluster; papers of the field have at most a few hundred."""

MAX_LINKS = 3 * MAX_DEVICES

MAX_HINTED = 64
"""Largest number of names among which the nearest one is searched; more would take seconds."""

_END = re.compile(r"([a-z0-9._-]+)(?:/([a-z0-9._-]+)(?:/([0-9]{1,4}))?)?")

End = Annotated[str, text("a link's end: device, device/ports or device/ports/index", longest=160)]


class DeviceEntry(Block):
    """A device, or with ``count`` several devices of one board: ``name0``, ``name1`` and so on."""

    name: Annotated[str, word("the device's name")]
    board: Annotated[str, text("a board's name, or a path from the cluster file's folder")]
    count: Annotated[int, whole(1, MAX_DEVICES, "devices")] | None = None
    nodes: Annotated[int, whole(1, MOST_NODES, "nodes of each board")] = 1
    address: Address | None = None

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that an address belongs to one device."""
        if self.count is not None and self.address is not None:
            yield ("address",), "must be left out where 'count' is: give each device an entry"
        if self.nodes > 1 and self.address is not None and self.address.node:
            yield ("address", "node"), "must be left out where 'nodes' is, which counts them"

    def names(self) -> list[str]:
        """Return the names of the devices that this entry stands for."""
        if self.count is None:
            return [self.name]
        return [f"{self.name}{index}" for index in range(self.count)]


class LinkEntry(Block):
    """A link; an end that does not name its port gets the fastest free one."""

    source: End = Field(alias="from")
    destination: End = Field(alias="to")
    line_rate_bits_per_s: LineRate | None = None
    latency_s: Latency | None = None


class ClusterFile(Block):
    """A cluster file."""

    format: Annotated[int, whole(1, 1, "version of the file format")]
    name: Annotated[str, word("the cluster's name")]
    devices: list[DeviceEntry] = Field(min_length=1, max_length=MAX_DEVICES)
    topology: Annotated[str, one_of(("chain", "ring", "links"), "how the devices are wired")]
    links: list[LinkEntry] | None = Field(default=None, max_length=MAX_LINKS)

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that names are unique and that links are listed if the topology needs them."""
        num_devices = sum(entry.count or 1 for entry in self.devices)
        if num_devices > MAX_DEVICES:
            yield ("devices",), f"must be at most {MAX_DEVICES} devices, not {num_devices}"
            return
        seen: set[str] = set()
        for index, entry in enumerate(self.devices):
            for name in entry.names():
                if name in seen:
                    what = f"must be unique, and {name!r} was there before"
                    yield ("devices", index, "name"), what
                    break
                seen.add(name)
        if self.topology == "links" and self.links is None:
            yield ("topology",), "'links' needs the key 'links', a list of links"
        if self.topology != "links" and self.links is not None:
            what = f"must be left out, or the topology be 'links' and not {self.topology!r}"
            yield ("links",), what
        if self.topology == "ring" and num_devices < 2:
            yield ("topology",), "a ring must have at least 2 devices, not 1"

    def ends(self, num_devices: int) -> list[tuple[int, int]]:
        """Return the pairs of device indices that a chain or a ring joins."""
        pairs = [(index, index + 1) for index in range(num_devices - 1)]
        if self.topology == "ring":
            pairs.append((num_devices - 1, 0))
        return pairs


@dataclass(frozen=True)
class Cluster:
    """A cluster with its boards read and its links wired.

    Parameters
    ----------
    name : str
        Name of the cluster in messages and reports.
    device_names : tuple of str
        Name of each device.
    nodes : tuple of BoardNode
        The node that each device is: a board, or a share of one. The nodes of a board follow one
        another. Equal boards share one object.
    links : tuple of LinkSpec
        Links, with their ports and rates: those of each board in front of all cables.
    notes : tuple of str
        Notes for the user about links that run slower than one of their ports could.
    addresses : tuple of Address or None
        Where a host reaches each device; empty if the file says nothing of it.
    """

    name: str
    device_names: tuple[str, ...]
    nodes: tuple[BoardNode, ...]
    links: tuple[LinkSpec, ...]
    notes: tuple[str, ...] = ()
    addresses: tuple[Address | None, ...] = ()

    @property
    def boards(self) -> tuple[Board, ...]:
        """Board of each device."""
        return tuple(node.board for node in self.nodes)

    @cached_property
    def spec(self) -> ClusterSpec:
        """The cluster as the planner sees it."""
        return ClusterSpec(
            name=self.name,
            device_names=self.device_names,
            devices=tuple(node.spec for node in self.nodes),
            links=self.links,
        )


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file and its boards.

    Raises
    ------
    FileError
        If the file or a board's file is missing or faulty; the error lists every fault.
    """
    path = Path(path)
    document = read_yaml(path)
    if isinstance(document.value, dict) and "part" in document.value:
        what = "is a board file, since it has the key 'part'; a cluster file is needed"
        document.faults.append(Fault((), what))
        document.raise_faults()
    entries = validated(document, ClusterFile)
    document.raise_faults()
    assert entries is not None, "a cluster file without faults"

    boards: dict[str, Board] = {}
    for index, entry in enumerate(entries.devices):
        if entry.board in boards:
            continue
        try:
            place = path.parent / entry.board if is_path(entry.board) else entry.board
            boards[entry.board] = load_board(place)
        except UserError as error:
            lines = error.faults if isinstance(error, FileError) else (str(error),)
            file = f"{error.path}: " if isinstance(error, FileError) else ""
            loc = ("devices", index, "board")
            document.faults += [Fault(loc, f"{file}{line}") for line in lines]
    document.raise_faults()

    names = [name for entry in entries.devices for name in entry.names()]
    of_device = [boards[entry.board] for entry in entries.devices for _ in range(entry.count or 1)]
    wiring = Wiring(names, of_device)
    if entries.links is None:
        for source, destination in entries.ends(len(names)):
            fault = wiring.join(PortEnd(source), PortEnd(destination))
            if fault:
                document.faults.append(Fault(("topology",), fault))
                break
    else:
        document.faults += _wire(entries.links, wiring)
    document.raise_faults()
    every = [entry for entry in entries.devices for _ in range(entry.count or 1)]
    wired = _wired(entries.name, wiring, [entry.nodes for entry in every])
    addresses = [
        entry.address and entry.address.model_copy(update={"node": entry.address.node + number})
        for entry in every
        for number in range(entry.nodes)
    ]
    return replace(wired, addresses=tuple(addresses))


def chain_of(board: Board, num_devices: int, nodes: int = 1) -> Cluster:
    """Return a device chain of equal boards.

    Parameters
    ----------
    board : Board
    num_devices : int
        Number of boards.
    nodes : int
        Number of nodes of each; each is a device of the cluster.

    Raises
    ------
    UserError
        If a number is out of range, or the board has too few link ports.
    """
    if not 1 <= num_devices <= MAX_DEVICES:
        raise UserError(f"a cluster must have 1..{MAX_DEVICES} devices, not {shown(num_devices)}")
    names = [f"{board.name}-{index}" for index in range(num_devices)]
    wiring = Wiring(names, [board] * num_devices)
    for index in range(num_devices - 1):
        fault = wiring.join(PortEnd(index), PortEnd(index + 1))
        if fault:
            raise UserError(f"a chain of {num_devices} {board.name} cannot be wired: {fault}")
    suffix = "" if nodes == 1 else f"-n{nodes}"
    return _wired(f"{board.name}-x{num_devices}{suffix}", wiring, [nodes] * num_devices)


def ways_to_share(board: Board, num_devices: int) -> list[Cluster]:
    """Device chains of equal boards, with one node each, two, and so on, as far as boards can.

    Parameters
    ----------
    board : Board
    num_devices : int
        Number of boards.
    """
    found = [chain_of(board, num_devices)]
    for nodes in range(2, MOST_NODES + 1):
        try:
            found.append(chain_of(board, num_devices, nodes))
        except UserError:  # of the first number that is too large
            break
    return found


def _wired(name: str, wiring: Wiring, counts: list[int]) -> Cluster:
    """A cluster of boards that are cabled, each with its number of nodes."""
    ports: list[dict[str, str]] = [{} for _ in wiring.boards]
    for link in wiring.links:
        for place, port, way in (
            (link.source, link.source_port, "leaves"),
            (link.destination, link.destination_port, "enters"),
        ):
            if counts[place] > 1 and way in ports[place]:
                raise UserError(
                    f"board {wiring.names[place]} has {counts[place]} nodes, and data may come "
                    "from one board and go to one other only; wire it within a chain or a ring"
                )
            ports[place][way] = port
    shared: dict[tuple[Any, ...], BoardNodes] = {}
    names: list[str] = []
    nodes: list[BoardNode] = []
    links: list[LinkSpec] = []
    # The node that has a port of a board, and the time that packets take between the two.
    owner: dict[tuple[int, str], tuple[int, float]] = {}
    for place, (board, count) in enumerate(zip(wiring.boards, counts, strict=True)):
        ends = ports[place] if count > 1 else {}
        key = (id(board), count, *sorted(ends.items()))
        if key not in shared:
            shared[key] = nodes_of(board, count, **ends)
        first = len(nodes)
        links += shared[key].links(first)
        for each in shared[key].nodes:
            owner |= {
                (place, port): (len(nodes), shared[key].port_latency_s(each, port))
                for port in each.ports
            }
            own = wiring.names[place]
            names.append(own if count == 1 else f"{own}.{each.number}")
            nodes.append(each)
    for link in wiring.links:
        source, to_source_s = owner[link.source, link.source_port]
        destination, to_destination_s = owner[link.destination, link.destination_port]
        latency_s = link.latency_s + to_source_s + to_destination_s
        links.append(replace(link, source=source, destination=destination, latency_s=latency_s))
    return Cluster(name, tuple(names), tuple(nodes), tuple(links), tuple(wiring.notes))


def _wire(links: list[LinkEntry], wiring: Wiring) -> list[Fault]:
    """Wire the listed links, those with named ports first, so that others do not take the ports."""
    faults: list[Fault] = []
    devices = {name: index for index, name in enumerate(wiring.names)}
    parsed: list[tuple[int, PortEnd, PortEnd]] = []
    for index, link in enumerate(links):
        ends = []
        for key, written in (("from", link.source), ("to", link.destination)):
            end = _parse_end(written, devices, wiring.boards)
            if isinstance(end, str):
                faults.append(Fault(("links", index, key), end))
            else:
                ends.append(end)
        if len(ends) < 2:
            continue
        if ends[0].device == ends[1].device:
            name = wiring.names[ends[0].device]
            faults.append(Fault(("links", index), f"must join two devices, not {name} with itself"))
            continue
        parsed.append((index, ends[0], ends[1]))
    named = [
        (end.device, end.group, end.index)
        for _, one, other in parsed
        for end in (one, other)
        if end.index is not None
    ]
    twice = {named[index] for index, _ in duplicates([str(port) for port in named])}
    for device, group, index in sorted(twice, key=str):
        where = f"{wiring.names[device]}/{group}/{index}"
        faults.append(Fault(("links",), f"must use each port once, but use {where} more than once"))
    if faults:
        return faults

    def given(link: tuple[int, PortEnd, PortEnd]) -> int:
        return -sum((end.group is not None) + (end.index is not None) for end in link[1:])

    order = {}
    for index, one, other in sorted(parsed, key=given):
        entry = links[index]
        fault = wiring.join(one, other, entry.line_rate_bits_per_s, entry.latency_s)
        if fault:
            faults.append(Fault(("links", index), fault))
        else:
            order[index] = wiring.links[-1]
    if faults:
        return faults
    wiring.links = [order[index] for index in sorted(order)]
    unreached = wiring.unreached()
    if unreached:
        some = ", ".join(unreached[:5]) + (", ..." if len(unreached) > 5 else "")
        first = wiring.names[0]
        faults.append(
            Fault(("links",), f"must join all devices, but none leads from {first} to {some}")
        )
    return faults


def _parse_end(written: str, devices: dict[str, int], boards: list[Board]) -> PortEnd | str:
    """Return a link's end, or a sentence that says why the text is not a valid one."""
    match = _END.fullmatch(written)
    if match is None:
        return f"must be device, device/ports or device/ports/index, not {shown(written)}"
    name, group_name, index = match.groups()
    if name not in devices:
        hint = nearest(name, devices) if len(devices) <= MAX_HINTED else ""
        return f"must be a device of this cluster, not {shown(name)}{hint}"
    device = devices[name]
    if group_name is None:
        return PortEnd(device)
    groups = {group.name: group for group in boards[device].links}
    if group_name not in groups:
        known = ", ".join(groups) or "none"
        return (
            f"must be a link port of {boards[device].name} ({known}), not {shown(group_name)}"
            f"{nearest(group_name, groups)}"
        )
    count = groups[group_name].count
    if index is not None and int(index) >= count:
        return f"must be {group_name}/0..{group_name}/{count - 1}, not {group_name}/{index}"
    return PortEnd(device, group_name, None if index is None else int(index))

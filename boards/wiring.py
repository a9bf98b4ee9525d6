"""Assignment of ports to the links of a cluster."""

from collections.abc import Iterable
from dataclasses import dataclass

from fpgapipe.boards.schema import Board, LinkGroup
from fpgapipe.hw.hls_models.spec.device import LinkSpec


@dataclass(frozen=True)
class PortEnd:
    """One end of a link: a device, and its port group and port index where the user gave them."""

    device: int
    group: str | None = None
    index: int | None = None


class Wiring:
    """Assigns two free ports to each link.

    Parameters
    ----------
    names : list of str
        Names of the devices, for messages.
    boards : list of Board
        One for each device.
    """

    def __init__(self, names: list[str], boards: list[Board]) -> None:
        self.names = names
        self.boards = boards
        self.links: list[LinkSpec] = []
        self.notes: list[str] = []
        self.free = [
            {group.name: list(range(group.count)) for group in board.links} for board in boards
        ]

    def groups(self, end: PortEnd) -> list[LinkGroup]:
        """Return the port groups that have a free port which the end allows."""
        free = self.free[end.device]
        return [
            group
            for group in self.boards[end.device].links
            if end.group in {None, group.name}
            and (end.index in free[group.name] if end.index is not None else free[group.name])
        ]

    def join(
        self,
        source: PortEnd,
        destination: PortEnd,
        line_rate_bits_per_s: float | None = None,
        latency_s: float | None = None,
    ) -> str | None:
        """Wire a link over the fastest free ports; return a sentence if this is impossible."""
        what = f"{self.names[source.device]} -> {self.names[destination.device]}"
        candidates = []
        for end in (source, destination):
            groups = self.groups(end)
            if not groups:
                return f"{what} must find a free link port, but {self._none_free(end)}"
            candidates.append(groups)
        pairs = [
            (one, other)
            for one in candidates[0]
            for other in candidates[1]
            if one.protocol == other.protocol
        ]
        if not pairs:
            offers = [
                f"{self.names[end.device]} has free {_protocols(groups)}"
                for end, groups in zip((source, destination), candidates, strict=True)
            ]
            return f"{what} must join ports of one protocol, but {', '.join(offers)}"
        one, other = max(
            pairs, key=lambda pair: min(group.spec().payload_bytes_per_s for group in pair)
        )
        ports = [
            f"{group.name}/{self._take(end, group)}"
            for end, group in ((source, one), (destination, other))
        ]
        slower = min((one, other), key=lambda group: group.line_rate_bits_per_s)
        rate = slower.line_rate_bits_per_s
        if line_rate_bits_per_s is not None:
            if line_rate_bits_per_s > rate:
                return (
                    f"{what} must run at no more than the {rate / 1e9:g} Gb/s of its ports, "
                    f"not at {line_rate_bits_per_s / 1e9:g} Gb/s"
                )
            rate = line_rate_bits_per_s
        elif one.line_rate_bits_per_s != other.line_rate_bits_per_s:
            fast = max(one.line_rate_bits_per_s, other.line_rate_bits_per_s)
            self.notes.append(
                f"{what} runs at {rate / 1e9:g} Gb/s, the slower of its ports; the other could do "
                f"{fast / 1e9:g} Gb/s"
            )
        if latency_s is None:
            latency_s = max(one.latency_s, other.latency_s)
        self.links.append(
            LinkSpec(
                source=source.device,
                destination=destination.device,
                source_port=ports[0],
                destination_port=ports[1],
                protocol=one.protocol,
                line_rate_bits_per_s=rate,
                payload_efficiency=min(one.efficiency, other.efficiency),
                latency_s=latency_s,
            )
        )
        return None

    def _take(self, end: PortEnd, group: LinkGroup) -> int:
        free = self.free[end.device][group.name]
        index = free[0] if end.index is None else end.index
        free.remove(index)
        return index

    def _none_free(self, end: PortEnd) -> str:
        name = self.names[end.device]
        if end.index is not None:
            return f"{name}/{end.group}/{end.index} is in use already"
        groups = [
            group
            for group in self.boards[end.device].links
            if end.group is None or group.name == end.group
        ]
        if not groups:
            return f"the board of {name} has none"
        ports = ", ".join(f"{group.count} {group.name}" for group in groups)
        return f"all of {name} are in use ({ports})"

    def unreached(self) -> list[str]:
        """Return the devices that no path of links connects to the first one."""
        neighbours: list[set[int]] = [set() for _ in self.names]
        for link in self.links:
            neighbours[link.source].add(link.destination)
            neighbours[link.destination].add(link.source)
        reached, waiting = {0}, [0]
        while waiting:
            fresh = neighbours[waiting.pop()] - reached
            reached |= fresh
            waiting += fresh
        return [name for index, name in enumerate(self.names) if index not in reached]


def _protocols(groups: Iterable[LinkGroup]) -> str:
    return " and ".join(sorted({group.protocol for group in groups}))

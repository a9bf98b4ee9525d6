"""Where the nodes of a plan are in a cluster, and which of its links are their wires."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec, LinkSpec
    from fpgapipe.partition.plan import Plan


@dataclass(frozen=True)
class PlacedNodes:
    """Nodes, each on a device of a cluster of its own, and the links that join them.

    Attributes
    ----------
    cluster : ClusterSpec
    places : tuple of int
        Index in the cluster of each node's device.
    placement : Placement
        The nodes, and the wires between them.
    links : tuple of LinkSpec
        The link that each wire is: the fastest of those between the two devices.
    """

    cluster: ClusterSpec
    places: tuple[int, ...]
    placement: Placement
    links: tuple[LinkSpec, ...]

    @classmethod
    def chain(cls, places: Sequence[int], cluster: ClusterSpec) -> PlacedNodes:
        """Nodes that are joined in a row.

        Parameters
        ----------
        places : sequence of int
            Index in the cluster of each node's device, in the order in which data flow.
        cluster : ClusterSpec

        Raises
        ------
        UserError
            If two that follow one another have no link.
        """
        placement = Placement.chain(len(places))
        links = []
        for wire in placement.wires:
            ends = [places[node] for node, _ in wire]
            link = cluster.fastest_link(*ends)
            if link is None:
                names = " and ".join(cluster.device_names[each] for each in ends)
                raise UserError(f"cluster {cluster.name} has no link between {names}")
            links.append(link)
        return cls(cluster, tuple(places), placement, tuple(links))

    @classmethod
    def of(cls, plan: Plan, cluster: ClusterSpec) -> PlacedNodes:
        """The nodes of a plan.

        Raises
        ------
        UserError
            If the cluster has no device of a node's name, two nodes are on one device, or two that
            follow one another have no link.
        """
        left = {name: place for place, name in enumerate(cluster.device_names)}
        places = []
        for node in plan.nodes:
            if node.device not in left:
                if node.device in cluster.device_names:
                    raise UserError(
                        f"device {node.device!r} has two stages; no programs are made for such "
                        "plans"
                    )
                raise UserError(f"cluster {cluster.name} has no device {node.device!r}")
            places.append(left.pop(node.device))
        return cls.chain(places, cluster)

    @cached_property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Device of each node."""
        return tuple(self.cluster.devices[place] for place in self.places)

    def link_before(self, node: int) -> LinkSpec:
        """The link to a node from the one before it, which there is."""
        before = self.placement.before(node)
        assert before is not None, "the first node has none"
        return self.links[self.placement.wire(before, node)]

    def port(self, node: int, wire: int) -> str:
        """The port of a node's device that a wire is plugged into."""
        link = self.links[wire]
        is_source = link.source == self.places[node]
        return link.source_port if is_source else link.destination_port

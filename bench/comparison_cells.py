"""Cells of docs/comparison.md: one network, cluster, batch and rate of the links, several ways.

`measured` answers one question with what `fpgapipe plan` finds for each way. Plans have prices of
their programs where the core runs the network, or else those of formulas.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fpgapipe.boards.cluster import chain_of, load_cluster
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.make.networks import loader
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.partition.explore.planned import one_link_each
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.strategies.comparison import hidden_sum
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
from fpgapipe.partition.strategies.plan_hybrid import plan_hybrid
from fpgapipe.partition.strategies.plan_layerwise import plan_layerwise

ROOT = Path(__file__).resolve().parent.parent

NETWORKS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "gnmt8": "GNMT-8"}
CLUSTERS = {
    "vcu118-x4": "4x VCU118",
    "vcu118-vcu129": "2x VCU118 + 2x VCU129",
    "u280-x4": "4x U280",
    "u280-x8": "8x U280",
}
BATCHES = (32, 256)

SCHEDULES = ("1f1b-as", "zb-h1", "zb-h2")
"""Schedules of the pipelines: those that the planner tries by default and that suit any core."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A network and a mini-batch on a chain of devices.

    Attributes
    ----------
    network, cluster : str
    batch : int
        Samples in a mini-batch.
    gbits : float
        Line rate of all links, Gb/s; 0 leaves those of the boards.
    """

    network: str
    cluster: str
    batch: int
    gbits: float

    @property
    def name(self) -> str:
        """Name of the file of its answer."""
        return f"{self.network}-{self.cluster}-{self.batch}-{self.gbits:g}"


@dataclasses.dataclass(frozen=True)
class Way:
    """The fastest plan of a way of training.

    Attributes
    ----------
    schedule : str
    seconds : float
        Time of a mini-batch.
    num_devices, num_microbatches : int
    memory_bytes : int
        Memory of the fullest device.
    level : str
        ``machine`` or ``estimate``.
    sum_s, bound_s : float, optional
        Of data parallelism, the time of the sum of gradients, and that of a mini-batch if the last
        backward pass hid it as far as possible.
    """

    schedule: str
    seconds: float
    num_devices: int
    num_microbatches: int
    memory_bytes: int
    level: str
    sum_s: float | None = None
    bound_s: float | None = None


@functools.cache
def cluster_of(name: str, gbits: float = 0.0) -> ClusterSpec:
    """A chain whose links have the given line rate, if there is one."""
    if name == "vcu118-vcu129":
        spec = load_cluster(ROOT / "examples/clusters/vcu118-vcu129-chain.yaml").spec
    else:
        board, _, count = name.rpartition("-x")
        spec = chain_of(load_board(board), int(count)).spec
    if not gbits:
        return spec
    links = (dataclasses.replace(link, line_rate_bits_per_s=gbits * 1e9) for link in spec.links)
    return dataclasses.replace(spec, links=tuple(links))


def way_of(plan: Plan, **extra: float) -> Way:
    """Sum up a plan."""
    return Way(
        plan.kind,
        plan.predicted.minibatch_s,
        len(plan.nodes),
        plan.num_microbatches,
        max(node.memory_bytes for node in plan.nodes),
        plan.predicted.level,
        **extra,
    )


def best_pipeline(request: Request, network: str) -> Way:
    """The fastest pipeline of at least two stages, with prices of its programs."""
    request = dataclasses.replace(request, cluster=one_link_each(request.cluster))
    plan = best_plan(request, network).plan
    if len(plan.stages) == 1:
        plan = best_plan(dataclasses.replace(request, all_devices=True), network).plan
    if len(plan.stages) == 1:
        raise UserError("no pipeline of several stages fits")
    return way_of(plan)


def data_parallel(request: Request, network: str) -> Way:
    """The fastest data-parallel plan, and the bound of one that hides its sum of gradients."""
    plan, _ = plan_data_parallel(request, network)
    sum_s, bound_s = hidden_sum(plan, request)
    return way_of(plan, sum_s=sum_s, bound_s=bound_s)


def layer_wise(request: Request, network: str) -> Way:
    """The fastest plan of degrees for each layer."""
    return way_of(plan_layerwise(request, network)[0])


def hybrid(request: Request, network: str) -> Way:
    """The fastest pipeline with a stage of several devices."""
    return way_of(plan_hybrid(request, network)[0])


WAYS = {
    "pipeline": best_pipeline,
    "data": data_parallel,
    "layerwise": layer_wise,
    "hybrid": hybrid,
}
"""Ways that are compared; `auto` is the fastest of them."""


def measured(question: Question, names: Iterable[str] = tuple(WAYS)) -> dict[str, Any]:
    """Some ways of a question, or the reasons why they are impossible."""
    cluster = cluster_of(question.cluster, question.gbits)
    request = Request(loader(question.network), question.batch, cluster, SCHEDULES)
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = dataclasses.asdict(WAYS[name](request, question.network))
        except (UserError, NotImplementedError) as error:
            found[name] = str(error)
    return found

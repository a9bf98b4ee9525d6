"""Layer-wise parallelism: nodes left by elimination, seconds of the search, time of a step.

Prints one JSON object for AlexNet, VGG-16, Inception-v3 and ResNets on a chain of U280: the number
of nodes that are left (the paper has 2 for all), seconds of pricing and of the search, and the
estimated time of a step beside those of data parallelism and of a single device.
"""

import argparse
import json
import time

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.strategies.plan_layerwise import plan_any_degrees

NETWORKS = ("alexnet", "vgg16", "inception-v3", "resnet18", "resnet50")
MOST_SEARCH_S = 1.0
"""Seconds that the search may take."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    given = parser.parse_args()
    cluster = chain_of(load_board("u280"), given.devices).spec
    found = {}
    for name in NETWORKS:
        request = Request(lambda batch, name=name: load_network(name, batch), given.batch, cluster)
        begin = time.perf_counter()
        plan = plan_any_degrees(request)
        found[name] = {
            "nodes_left": plan.num_left,
            "search_s": plan.search_s,
            "all_s": time.perf_counter() - begin,
            "step_s": plan.step_s,
            "data_parallel_s": plan.data_parallel_s,
            "serial_s": plan.serial_s,
            "within": plan.num_left == 2 and plan.search_s < MOST_SEARCH_S,
            "degrees": {group.layers[0]: str(group.degrees) for group in plan.groups},
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

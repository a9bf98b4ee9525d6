"""Wall time of exploration and comparison on eight U280; prints one JSON object.

The goal for ResNet-50 is 10 s. Networks are loaded inside the time, packages are not.
"""

import json
import time

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.make.networks import loader
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.schedule.schedule_kinds import compared_schedules
from fpgapipe.partition.strategies.comparison import compare

BATCH = 64
NETWORKS = ("vgg16", "resnet50", "gnmt8")


def main() -> None:
    """Measure, the slowest last."""
    cluster = chain_of(load_board("u280"), 8).spec
    found = {}
    for network in NETWORKS:
        begin = time.perf_counter()
        best = explore(Request(loader(network), BATCH, cluster)).best
        explored = time.perf_counter()
        compare(Request(loader(network), BATCH, cluster, compared_schedules()), network)
        compared = time.perf_counter()
        found[network] = {
            "explore_s": round(explored - begin, 2),
            "compare_s": round(compared - explored, 2),
            "schedule": best.kind,
            "num_microbatches": best.num_microbatches,
            "stages": len(best.stages),
            "minibatch_s": best.minibatch_s,
            "optimal": best.optimal,
        }
    goal = {"resnet50_explore_s": 10.0, "met": found["resnet50"]["explore_s"] < 10}
    print(json.dumps({"bench": "planner", "batch": BATCH, "goal": goal, **found}, indent=2))


if __name__ == "__main__":
    main()

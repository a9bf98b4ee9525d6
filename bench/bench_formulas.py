"""Times of whole programs as shares of the estimates by formulas; prints one JSON object.

Networks are planned for one U280 with some arrays and numbers of micro-batches, once by the
formulas that propose and once by the programs that choose. With ``--output
docs/figures/formulas.json`` the least and the greatest share of each network is written. A
combination that is refused, or whose programs would take long to be timed, is left out.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from bench_best_plan import SMALL
from figure import write_figure
from small_networks import SHORT

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.make.networks import loader
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.best_plan import best_plan

NOTE = (
    "Seconds of a mini-batch by programs over those by formulas, on one U280: small networks with "
    "32 samples in 1, 4 and 32 micro-batches on 32x32, 32x128 and 16x64 cells, VGG-16 and "
    "ResNet-18 in 4, and digits-cnn with 6,250 samples in 1, on 32x32 and 32x128."
)

Case = tuple[str, int, tuple[int, int], int]


def cases() -> Iterator[Case]:
    """Network, samples, array and micro-batches of each case."""
    for name, array, count in product(SMALL, ((32, 32), (32, 128), (16, 64)), (1, 4, 32)):
        yield name, 32, array, count
    for array in ((32, 32), (32, 128)):
        yield "digits-cnn", 6250, array, 1
        yield "vgg16", 32, array, 4
        yield "resnet18", 32, array, 4


def share_of(case: Case) -> float | None:
    """Seconds by programs over those by formulas; None without programs."""
    name, batch, array, count = case
    cluster = chain_of(load_board("u280"), 1).spec
    load = loader(SHORT.get(name, name))
    request = Request(load, batch, cluster, ("1f1b-as",), count, array=array)
    try:
        estimate_s = explore(request).best.steady_s
        predicted = best_plan(request, name).plan.predicted
    except UserError:
        return None
    return predicted.minibatch_s / estimate_s if predicted.level == "machine" else None


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    shares: dict[str, list[float]] = {}
    for case in cases():
        if (share := share_of(case)) is not None:
            shares.setdefault(case[0], []).append(share)
    rows = [
        {"network": name, "cases": len(each), "least": min(each), "most": max(each)}
        for name, each in shares.items()
    ]
    if given.output:
        write_figure(given.output, "bench/bench_formulas.py", NOTE, {"rows": rows})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

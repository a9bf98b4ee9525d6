"""A fuzzer for networks: seeded ones of all operators, from the import to simulated hardware.

Each network is a module of PyTorch with 3 to 15 layers. The levels, each an option:

* ``import``: it is imported, and verified against the module in FP64;
* ``model``: inference and two training steps of the bit-exact model are compared with PyTorch in
  the core's numbers, with random micro-batches, formats, optimisers and cores;
* ``check``: the comparison of ``run --check torch`` must find it right;
* ``cuts``: programs of random stages, schedules and strategies leave the same weights;
* ``onnx``: both of PyTorch's exporters write it as ONNX, and it is imported and run from there;
* ``hardware``: simulated hardware has the bits of the model, and the cycles of the cycle model.

A network is right, refused (an error for users, counted by its reason), wrong, or ends in a
traceback. Prints one JSON object; exits with 1 if a network is wrong or ends in a traceback. With
``--log``, a line is written for each network, and a second run goes on behind the last line.
``--show SEED`` prints the code of a network, ``--minimise SEED`` that of a smaller network that
fails alike.
"""

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from random_networks.checks import REFUSED, RIGHT, TRACEBACK, WRONG, Subject
from random_networks.levels import CHECKS, verdicts_of
from random_networks.minimise import minimise
from random_networks.networks import draw_network

DEFAULT = ("import", "model", "check")


def judge(seed: int, levels: tuple[str, ...]) -> dict[str, Any]:
    """Give the verdicts about a network."""
    begin = time.perf_counter()
    network = draw_network(seed)
    verdicts = verdicts_of(Subject(network, seed), levels)
    order = (RIGHT, REFUSED, WRONG, TRACEBACK)
    outcomes = [each.outcome for each in verdicts.values()]
    return {
        "seed": seed,
        "outcome": max(outcomes, key=order.index),
        "levels": {level: each.outcome for level, each in verdicts.items()},
        "reasons": {level: each.reason for level, each in verdicts.items() if each.reason},
        "kinds": {level: each.kind for level, each in verdicts.items() if each.reason},
        "operators": sorted({each.operator for each in network.description.layers}),
        "layers": len(network.description.layers),
        "wall_s": round(time.perf_counter() - begin, 2),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of all verdicts."""
    levels: dict[str, Counter[str]] = {}
    refused: dict[str, Counter[str]] = {}
    operators: Counter[str] = Counter()
    for row in rows:
        for level, outcome in row["levels"].items():
            levels.setdefault(level, Counter())[outcome] += 1
            if outcome == REFUSED:
                refused.setdefault(level, Counter())[row["kinds"][level]] += 1
        if row["levels"].get("model") == RIGHT:
            operators.update(row["operators"])
    return {
        "networks": len(rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
        "levels": {level: dict(each) for level, each in levels.items()},
        "operators_of_those_right_in_the_model": dict(operators.most_common()),
        "refused": {level: dict(each.most_common()) for level, each in refused.items()},
        "faults": [row for row in rows if row["outcome"] in (WRONG, TRACEBACK)],
        "wall_s": round(sum(row["wall_s"] for row in rows), 1),
    }


def main() -> int:
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first network")
    parser.add_argument("--level", action="append", choices=list(CHECKS), help="levels to check")
    parser.add_argument("--log", type=Path, help="file with a line for each network")
    parser.add_argument("--show", type=int, metavar="SEED", help="print a network's code")
    parser.add_argument("--minimise", type=int, metavar="SEED", help="make a failing network small")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    levels = tuple(given.level or DEFAULT)
    if given.show is not None:
        print(draw_network(given.show).source)
        return 0
    if given.minimise is not None:
        return show_minimised(given.minimise, levels)
    rows: list[dict[str, Any]] = []
    if given.log and given.log.exists():
        rows = [json.loads(line) for line in given.log.read_text().splitlines()]
    done = {row["seed"] for row in rows}
    for seed in range(given.seed, given.seed + given.networks):
        if seed in done:
            continue
        rows.append(judge(seed, levels))
        row = rows[-1]
        reason = " ".join(" ".join(row["reasons"].values()).split())[-150:]
        print(f"{seed:6} {row['outcome']:9} {row['wall_s']:6.2f} s  {reason}", file=sys.stderr)
        if given.log:
            with given.log.open("a") as file:
                file.write(json.dumps(row) + "\n")
    result = summary(rows)
    print(json.dumps(result, indent=1))
    return 1 if result["faults"] else 0


def show_minimised(seed: int, levels: tuple[str, ...]) -> int:
    """Print the smallest network found that fails as that of a seed does."""
    found = minimise(draw_network(seed), seed, levels, lambda text: print(text, file=sys.stderr))
    if found is None:
        print(f"the network of seed {seed} does not fail", file=sys.stderr)
        return 0
    network, level, verdict = found
    print(f"# {level}: {verdict.outcome}: {verdict.reason}\n# input: {list(network.example.shape)}")
    print(network.source)
    return 1


if __name__ == "__main__":
    sys.exit(main())

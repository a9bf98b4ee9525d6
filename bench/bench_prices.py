"""Prices and programs of plans of all kinds, to compare them before and after a change.

Each case is a network, a number of U280 in a chain, a strategy and a schedule, with 4 micro-batches
and with 24, of which only some are timed. Printed are, by case, the seconds of a mini-batch, the
bytes of memory, and digests of the whole plan, of the event simulation and, with 4 micro-batches,
of the programs of all nodes; or the error. Nothing is remembered from other runs. With ``--against
FILE``, what an earlier run printed, cases that differ are printed alone, and the exit code is 1 if
there are any.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fpgapipe
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.machine import lower_plan, price_plan
from fpgapipe.partition.schedule.built_schedules import built_schedules

NETWORKS = ("digits-cnn", "resnet-mini", "char-gpt")
SHARED = ("data", "filter", "hybrid", "replicas", "layerwise")
"""Strategies in which nodes share samples or layers."""

FEW, MANY = 4, 24
"""Micro-batches; of many, only some are timed."""

Case = tuple[str, int, str, str, int]


def cases() -> Iterator[Case]:
    """Network, boards, strategy, schedule and micro-batches."""
    for network in NETWORKS:
        for count in (FEW, MANY):
            for boards in (1, 2, 3):
                for schedule in built_schedules():
                    yield network, boards, "pipeline", schedule, count
            for boards in (2, 4):
                for strategy in SHARED:
                    yield network, boards, strategy, "auto", count


def digest(*parts: bytes) -> str:
    """The first digits of a digest."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def rounded(value: Any) -> str:
    """A value of JSON whose numbers have ten digits."""
    return json.dumps(json.loads(json.dumps(value), parse_float=lambda text: f"{float(text):.9e}"))


def of_plan(plan: Plan) -> str:
    """Digest of a plan."""
    return digest(rounded(json.loads(plan.to_json())).encode())


def found(case: Case) -> dict[str, Any]:
    """What a plan costs, and digests of it."""
    network, boards, strategy, schedule, count = case
    cluster = chain_of(load_board("u280"), boards).spec
    try:
        answer = fpgapipe.plan(
            network,
            cluster,
            batch=24,
            micro_batches=count,
            schedule=schedule,
            strategy=strategy,
            array=(16, 16),
        )
        plan, timeline = price_plan(answer.plan, answer.graph, answer.cluster)
    except UserError as error:
        return {"error": str(error)}
    told: dict[str, Any] = {
        "seconds": plan.predicted.minibatch_s,
        "memory_bytes": sum(node.memory_bytes for node in plan.nodes),
        "plan": of_plan(plan),
        "timeline": digest(*(rounded(each.tolist()).encode() for each in timeline.end_s)),
    }
    if count == FEW:
        pipeline = lower_plan(plan, answer.graph, answer.cluster)
        told["programs"] = digest(*(part.instructions.encode() for part in pipeline.parts))
        told["with programs"] = of_plan(price_plan(plan, answer.graph, answer.cluster, pipeline)[0])
    return told


def main() -> int:
    """Print the figures, or what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FPGAPIPE_CACHE"] = folder
        rows = {}
        for case in cases():
            print(*case, file=sys.stderr)
            rows[" ".join(map(str, case))] = found(case)
    if not given.against:
        print(json.dumps(rows, indent=1))
        return 0
    before = json.loads(given.against.read_text(encoding="utf-8"))
    changed = {
        key: [before.get(key), rows.get(key)]
        for key in [*before, *(rows.keys() - before.keys())]
        if before.get(key) != rows.get(key)
    }
    print(json.dumps({"cases": len(rows), "changed": changed}, indent=1))
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())

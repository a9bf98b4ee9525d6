"""Units with shapes at the borders of the code: the bit-exact model against PyTorch.

Draws tiny networks around every unit of the registry: channels of 1 to 130, most of them beside the
borders of vectors, blocks and words of memory, groups, strides, paddings, dilations, kernels, one
to three axes, both layouts, with and without bias; the unit comes first, behind other layers, in
front of a skip connection or last; training and inference, BF16 and FP32, cores of all kinds.

Loss and changes of the weights after a step, or the results of inference, are compared with
PyTorch that rounds as the core does, within a few percent of a tensor's norm; with PyTorch in FP32,
which shares no code with the lowering, so that what both get wrong is found; and in one case of
four of convolutions and linear layers with another core, which must give the same bits.

Prints one JSON object: cases by unit and verdict, what was wrong, reasons of refusals, tracebacks
and seconds. Exits with 1 if a case is wrong or ends in an error that is no refusal. ``--cases N``
takes so many, ``--seed S`` others, ``--only WORD`` those of units with the word in their names.
``--first N`` begins with that case. With ``--log FILE`` each verdict is a line of the file as soon
as it is known, and cases with a line there are not run again.
"""

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from shape_classes import draw, judge, plain

TWINS = 4
"""One of so many cases runs on a second core as well, which must give the same bits."""


def known_verdicts(log: Path | None) -> dict[tuple[int, str, int], dict[str, Any]]:
    """Verdicts of an earlier run, by seed, word and number."""
    if log is None or not log.exists():
        return {}
    lines = map(json.loads, log.read_text().splitlines())
    return {(each["seed"], each["only"], each["number"]): each for each in lines}


def main() -> int:
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="units with this in their names")
    parser.add_argument("--log", type=Path, help="file of verdicts, which is continued")
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    known = known_verdicts(given.log)
    found = []
    for number in range(given.first, given.first + given.cases):
        key = given.seed, given.only, number
        if key in known:
            found.append(known[key])
            continue
        if given.seconds and time.perf_counter() - begin > given.seconds:
            break
        verdict = judge(draw(given.seed, number, given.only), given.seed, twin=number % TWINS == 0)
        each = dict(zip(("seed", "only", "number"), key, strict=True)) | verdict
        found.append(each)
        if given.log:
            with given.log.open("a") as file:
                print(json.dumps(each), file=file)
        if each["verdict"] in ("WRONG", "TRACEBACK"):
            print(f"{number}: {each['case']}: {each['reason']}", file=sys.stderr, flush=True)
    units: dict[str, Counter[str]] = defaultdict(Counter)
    for each in found:
        units[each["unit"]][each["verdict"]] += 1
    bad = [each for each in found if each["verdict"] in ("WRONG", "TRACEBACK")]
    refused = Counter(plain(each["reason"]) for each in found if each["verdict"] == "refused")
    result = {
        "cases": len(found),
        "verdicts": Counter(each["verdict"] for each in found),
        "units": dict(sorted(units.items())),
        "bad": bad,
        "refused": dict(refused.most_common()),
        "largest_share_of_tolerance": {
            name: max((each.get(name, 0.0) for each in found), default=0.0)
            for name in ("worst", "rough")
        },
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print(json.dumps(result, indent=2))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

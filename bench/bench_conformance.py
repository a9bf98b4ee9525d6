"""digits-cnn over every transport: three steps on two devices must leave the same bits everywhere.

Each transport is tried before bit-exact models and, with --simulated, before the devices in RTL.
Prints one JSON object: for each of them a digest of both memories, whether it and the losses
are those of the model without a driver, and seconds. A transport whose package is missing is
skipped by name. Exits with 1 if one differs or was skipped. Takes a minute or two; with --simulated
another ten.

With --faults, 33 kinds of faults of the memory stand between each transport and the models: writes
that are lost, doubled, swapped, cut or land elsewhere, reads that are stale or cut, bits that turn,
each the first time, one of twenty times and each time. Each must end with the same bits, or with an
error that names the device.
"""

import argparse
import contextlib
import importlib.util
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fpgapipe.errors import UserError
from fpgapipe.host.backends.devices import DeviceBackend
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.network.initial_values import initial_parameters

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
from conformance_cases import (
    BASES,
    DEVICES,
    NEEDS,
    TRANSPORTS,
    Rig,
    digits_pipeline,
    modelled,
    simulated,
    trained_digits,
)
from memory_faults import EVERY, READS, WRITES, with_faults

Behind = Callable[..., Any]

BEHIND: dict[str, Behind] = {"models": modelled, "RTL": simulated}
FAULTY: dict[str, Behind] = {
    f"{name}, {which}": with_faults(modelled, wrong, every)
    for name, wrong in (WRITES | READS).items()
    for which, every in EVERY.items()
}


def over(transport: str, behind: Behind, pipeline: PipelineProgram, folder: Path) -> dict[str, Any]:
    """Train over one transport; returns what was left, and the seconds from the check on."""
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        rig = Rig(folder, stack, behind=behind)
        ways = TRANSPORTS[transport](pipeline, BASES, rig)
        parameters = initial_parameters(pipeline.graph, 0)
        backend = stack.enter_context(DeviceBackend(pipeline, parameters, ways))
        results, digest = trained_digits(backend, pipeline.graph)
    return {"results": results, "digest": digest, "seconds": round(time.monotonic() - began_s, 1)}


def main() -> int:
    """Print what was found; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transports", nargs="+", metavar="NAME", choices=TRANSPORTS)
    parser.add_argument("--simulated", action="store_true", help="also before devices in RTL")
    parser.add_argument("--faults", action="store_true", help="with faults of the memory")
    given = parser.parse_args()
    if given.faults:
        logging.disable()  # each transfer that is done again is said
    pipeline = digits_pipeline()
    with ModelBackend(pipeline, initial_parameters(pipeline.graph, 0)) as backend:
        results, digest = trained_digits(backend, pipeline.graph)
    found: dict[str, Any] = {}
    skipped = []
    for transport in given.transports or TRANSPORTS:
        if not importlib.util.find_spec(NEEDS.get(transport, "fpgapipe")):
            skipped.append(transport)
            continue
        for behind in FAULTY if given.faults else BEHIND if given.simulated else ("models",):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    one = over(transport, (FAULTY | BEHIND)[behind], pipeline, Path(folder))
                except UserError as error:
                    if not given.faults:
                        raise
                    # A device without a name is called by its number, or by its server's place.
                    names = [*(f"device {number}" for number in range(DEVICES)), "127.0.0.1:"]
                    named = any(name in str(error) for name in names)
                    one = {"error": str(error)[:160], "equal": named}
                else:
                    one["equal"] = (one.pop("results"), one["digest"]) == (results, digest)
            found.setdefault(transport, {})[behind] = one
            print(f"{transport}, {behind}: {one}", file=sys.stderr)
    equal = all(one["equal"] for each in found.values() for one in each.values())
    reached = equal and not skipped
    report = {
        "bench": "conformance",
        "model": {"results": results, "digest": digest},
        "transports": found,
        "skipped": skipped,
        "reached": reached,
    }
    print(json.dumps(report, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())

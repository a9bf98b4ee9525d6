"""Links on the simulated hardware: efficiency, latency, speed and a soak; prints one JSON object.

``--quick`` takes a tenth of the cycles and words.
"""

import json
import resource
import sys
from fractions import Fraction

from fpgapipe.host.bench.link_bench import bench_link
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.sim_tb.native.phy import WireSpec
from fpgapipe.sim_tb.worlds.link_soak import Soak, soak
from fpgapipe.sim_tb.worlds.link_world import link_library

LINKS = {
    "16 bytes a cycle": (LinkEngineSpec(16, slots=(32, 32, 8)), Fraction(16)),
    "16 bytes a cycle, frames of 4 words": (
        LinkEngineSpec(16, frame_words=4, slots=(32, 32, 8)),
        Fraction(16),
    ),
    "100 Gb/s at 300 MHz": (LinkEngineSpec(64, slots=(32, 32, 8)), Fraction(125, 3)),
}
"""Ends of links, and line rates in bytes a cycle."""

TARGETS = {0.0: 0.94, 1e-6: 0.93, 1e-5: 0.80, 1e-4: 0.0, 1e-3: 0.0}
"""Least efficiency by bit error rate; of the last two it is only told."""

SOAK_WORDS = 5_000_000
"""Words of the soak of each link."""

SOAK_SEEDS = 10


def main() -> None:
    """Measure all links with all error rates, then soak them."""
    part = 10 if "--quick" in sys.argv else 1
    result = {"links": [], "soak": {}}
    for name, (spec, rate) in LINKS.items():
        library = link_library(spec)
        for bit_error_rate, least in TARGETS.items():
            wire = WireSpec(
                phy_bytes=spec.phy_bytes, bytes_per_cycle=rate, bit_error_rate=bit_error_rate
            )
            found = bench_link(spec, wire, cycles=1_000_000 // part, library=library)
            worst = min(found.efficiency_both, found.efficiency_one)
            result["links"].append(
                {"link": name, "least": least, "reached": worst >= least, **found.to_dict()}
            )
            print(f"{name}, {bit_error_rate:g}: {worst:.4f}", file=sys.stderr, flush=True)
        begin = cpu_s()
        total = Soak()
        for seed in range(SOAK_SEEDS):
            total += soak(spec, SOAK_WORDS // SOAK_SEEDS // part, seed, library=library)
        took = cpu_s() - begin
        result["soak"][name] = {**vars(total), "cpu_s": took, "words_per_s": total.words / took}
        print(f"{name}: {total.words:,} words", file=sys.stderr, flush=True)
    print(json.dumps(result, indent=2))


def cpu_s() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


if __name__ == "__main__":
    main()

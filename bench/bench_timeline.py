"""Event simulation of large schedules; prints one JSON object.

Times include building the arrays and the pass over them, on one core; the first compiled run, which
loads or makes the machine code, is printed separately.
"""

import json
import resource
import time

from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline import event_graph
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

CASES = {
    "1f1b-as 4 x 125,000": ("1f1b-as", 4, 125_000),
    "zb-h1 4 x 84,000": ("zb-h1", 4, 84_000),
    "1f1b-as 64 x 8,000": ("1f1b-as", 64, 8_000),
    "gpipe 1,024 x 1,024": ("gpipe", 1024, 1024),
    "1f1b-as 1,024 x 1,024": ("1f1b-as", 1024, 1024),
}


def main() -> None:
    """Time each case, compiled and plain."""
    compiled = event_graph.compiled_loop() is not None
    results: dict[str, object] = {"numba": compiled}
    if compiled:
        begin = time.perf_counter()
        simulate(make_schedule("gpipe", 4, 4_000), StageTimes.uniform(4, 1, 1, 1))
        results["first_compiled_run_s"] = round(time.perf_counter() - begin, 3)
    cases = {}
    for name, (kind, n, m) in CASES.items():
        begin = time.perf_counter()
        schedule = make_schedule(kind, n, m)
        made_s = time.perf_counter() - begin
        times = StageTimes.uniform(n, 1, 1, 1, transfer_s=0.1)
        row: dict[str, float] = {"tasks": schedule.num_tasks, "make_s": round(made_s, 3)}
        for label, threshold in (("plain_s", 10**12), ("compiled_s", 0)):
            if label == "compiled_s" and not compiled:
                continue
            event_graph.COMPILED_FROM_TASKS = threshold
            begin = time.perf_counter()
            simulate(schedule, times)
            row[label] = round(time.perf_counter() - begin, 3)
        cases[name] = row
    results["cases"] = cases
    results["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

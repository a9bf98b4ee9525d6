"""The schedules for which the compiler makes programs."""

from fpgapipe.errors import UserError, nearest
from fpgapipe.partition.schedule.schedule_kinds import KINDS

BUILT_SCHEDULES = (
    "gpipe", "1f1b", "1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so", "zb-h1", "zb-h2", "pipedream",
    "pipedream-newest",
)  # fmt: skip
"""Kinds of schedules for which programs can be made."""


def check_schedule_kind(kind: str) -> None:
    """Refuse a kind of schedule for which no program can be made.

    Raises
    ------
    UserError
        If the kind is not in `BUILT_SCHEDULES`. The message says why, and lists those that are.
    """
    if kind in BUILT_SCHEDULES:
        return
    known = (*KINDS, "zb-auto")
    if kind == "csv":
        why = "no programs are made for a schedule from a file"
    elif kind not in known:
        why = f"there is no schedule {kind!r}{nearest(kind, known)}"
    elif kind == "zb-auto":
        why = "zb-auto has no order of its own, but searches one for given times"
    else:
        why = f"schedule {kind} has other than one stage on each device"
    raise UserError(f"{why} (those that can be built: {', '.join(BUILT_SCHEDULES)})")

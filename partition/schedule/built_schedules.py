"""The schedules for which the compiler makes programs."""

from fpgapipe.errors import UserError
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES


def built_schedules() -> tuple[str, ...]:
    """Names of the kinds of schedules for which programs can be made."""
    return tuple(name for name in SCHEDULES.usable() if not SCHEDULES[name].why_not_built)


def check_schedule_kind(kind: str) -> None:
    """Refuse a kind of schedule for which no program can be made.

    Raises
    ------
    UserError
        If there is no such kind, or no programs are made for it. The message says why, and lists
        those that are built.
    """
    if kind == "csv":
        why = "no programs are made for a schedule from a file"
    else:
        why = SCHEDULES[kind].why_not_built
    if why:
        raise UserError(f"{why} (those that can be built: {', '.join(built_schedules())})")

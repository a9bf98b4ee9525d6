"""Schedules in PyTorch's CSV form."""

from __future__ import annotations

from pathlib import Path

from fpgapipe.errors import FileError
from fpgapipe.lowering.schedule.pytorch_csv import read_pytorch_csv
from fpgapipe.lowering.schedule.schedule import Schedule, ScheduleError
from fpgapipe.partition.schedule.schedule_kinds import check_passes
from fpgapipe.partition.schedule.schedule_rules import check_schedule


def read_schedule(
    name: str | Path, num_devices: int | None = None, num_microbatches: int | None = None
) -> Schedule:
    """Read a schedule in PyTorch's CSV form and check it against all rules.

    Parameters
    ----------
    name : str or Path
        The file.
    num_devices, num_microbatches : int, optional
        Numbers that the schedule has to have.

    Raises
    ------
    FileError
        If the file is no schedule, breaks a rule, deadlocks, or has other numbers.
    """
    made = read_pytorch_csv(Path(name))
    faults = []
    for what, has, wanted in (
        ("devices (lines)", made.num_devices, num_devices),
        ("micro-batches", made.num_microbatches, num_microbatches),
    ):
        if wanted is not None and has != wanted:
            faults.append(f"has {has} {what}, not the {wanted} asked for")
    if not faults:
        try:
            check_passes(made.kind, made.num_stages, made.num_microbatches)
            faults += check_schedule(made).faults
        except ScheduleError as error:
            faults.append(str(error))
    if faults:
        raise FileError(name, faults)
    return made


def read_plain_schedule(
    name: str | Path, num_devices: int | None = None, num_microbatches: int | None = None
) -> Schedule:
    """Read a schedule with a stage on each device, in the order of the devices.

    Raises
    ------
    FileError
        In the same cases as `read_schedule`, and if a device has other stages.
    """
    made = read_schedule(name, None, num_microbatches)
    if made.placement != tuple(range(made.num_stages)):
        raise FileError(
            name,
            [
                "plan takes schedules with one stage on each device, stage 0 on line 1 and so on; "
                f"this one places its stages on lines {_lines(made.placement)}; "
                "'fpgapipe schedule --from-csv' times it with times of your own"
            ],
        )
    if num_devices is not None and made.num_stages != num_devices:
        raise FileError(
            name, [f"has {made.num_stages} stages, and there are {num_devices} devices"]
        )
    return made


def _lines(placement: tuple[int, ...]) -> str:
    some = ", ".join(str(device + 1) for device in placement[:8])
    return some + (", ..." if len(placement) > 8 else "")

"""Numbers in options: each has its range, and nothing beyond it is begun."""

import math

import click
import pytest
from cases.command_cases import commands_of

from fpgapipe.boards.cluster import MAX_DEVICES
from fpgapipe.host.cli import main as cli_module
from fpgapipe.host.cli.options import ranges
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.partition.explore.explorer import ENOUGH_TRIED, splits_of
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.schedule import schedule_kinds
from fpgapipe.partition.schedule.zero_bubble import zb_auto

TEXTS = [
    *("nan", "-nan", "NaN", "inf", "-inf", "Infinity", "1e308", "-1e308", "1e400", "-1", "-1e-9"),
    *("0", "1.5", "1e3", "9" * 30, "-" + "9" * 30, "9" * 5000, "0x10", "", " ", "x", "1,000"),
]
"""Texts that every number option is tried with."""


def number_options():
    """Every option of every command that is a number, and the command's words."""

    def walk(command, words):
        if isinstance(command, click.Group):
            for name, each in commands_of(command).items():
                yield from walk(each, [*words, name])
            return
        for option in command.params:
            kind = option.type
            if isinstance(kind, click.IntRange | click.FloatRange) or kind.name in (
                "integer",
                "float",
            ):
                yield pytest.param(words, option, id=" ".join([*words, option.opts[-1]]))

    return list(walk(cli_module.cli, []))


def is_within(text, kind):
    """Whether a text is a number within a range."""
    try:
        number = int(text) if isinstance(kind, ranges.Whole) else float(text)
    except ValueError:
        return False
    if math.isnan(number) or len(text) > ranges.MOST_CHARACTERS:
        return False
    return kind.min <= number < kind.max or (number == kind.max and not kind.max_open)


def test_there_are_such_options():
    assert len(number_options()) > 40


@pytest.mark.parametrize(("words", "option"), number_options())
def test_every_number_has_its_range(words, option, cli):
    kind = option.type
    assert isinstance(kind, ranges.Whole | ranges.Real), "take one of host/cli/options/ranges.py"
    assert -1e20 < kind.min < kind.max < 1e20
    if isinstance(option.default, int | float):
        assert is_within(str(option.default), kind)
    for text in TEXTS:
        if is_within(text, kind):
            continue
        code, out, err = cli(*words, f"{option.opts[-1]}={text}")
        assert (code, out) == (2, ""), text
        assert f"Invalid value for '{option.opts[0]}'" in err
        assert "Traceback" not in err
        assert len(err) < 1000


def test_devices_are_as_many_as_a_cluster_may_have():
    assert (ranges.DEVICES.max, ranges.STAGES.max) == (MAX_DEVICES, MAX_DEVICES)


@pytest.mark.parametrize(
    "arguments",
    [
        *(("bench", "link", "--bytes-per-cycle", rate) for rate in ("1e999999999", "nan", "1/0")),
        ("bench", "link", "--bytes-per-cycle", "9" * 5000),
        *(("bench", "link", "--slots", slots) for slots in ("1", "1,2,x", "-1,2,2", "9" * 5000)),
        *(
            ("bench", "core", "--layer", f"gemm:m={m},n=8,k=8")
            for m in ("0", "-1", "nan", "9" * 5000)
        ),
        *(
            ("plan", "lenet5", "--board", "u280", "--array", array)
            for array in ("0x8", "8", "8x1e3", "8x2000", "9" * 5000 + "x8", "nanxnan")
        ),
    ],
)
def test_numbers_within_texts(arguments, cli):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err


@pytest.mark.parametrize("batch", [1 << 24, 999_983, 9_699_690])
def test_a_huge_batch_is_cut_into_few_enough_pieces(batch):
    from fpgapipe.boards.cluster import chain_of
    from fpgapipe.boards.library import load_board

    for devices in (1, 4):
        cluster = chain_of(load_board("u280"), devices).spec
        counts = list(splits_of(Request(None, batch, cluster)))
        assert counts[0] == 1
        assert counts[-1] <= ENOUGH_TRIED
        assert all(batch % count == 0 for count in counts)
    many = chain_of(load_board("u280"), 100).spec
    assert max(splits_of(Request(None, 1 << 24, many))) == 4096


@pytest.mark.parametrize("batch", [1_000_000, 999_983])
def test_a_batch_of_a_million_is_planned(batch, cli):
    """It took an hour and gigabytes."""
    code, _, err = cli(
        *("plan", "digits-cnn", "--board", "u250", "--array", "8x8", "--schedule", "1f1b-as"),
        *("--batch", batch, "--json"),
    )
    assert code == 0, err


def test_schedules_of_too_many_passes_are_refused():
    limit = schedule_kinds.MAX_PASSES
    kinds = schedule_kinds.SCHEDULES
    for kind in (name for name in kinds.own if not kinds[name].make_for):
        with pytest.raises(ScheduleError, match=f"{kind} must have at most 1,048,576 passes"):
            schedule_kinds.make_schedule(kind, 4096, limit // 2048)
    with pytest.raises(
        ScheduleError, match=r"stages times micro-batches.*, not 4 x 1,048,576 = 4,"
    ):
        zb_auto(4, limit, None)

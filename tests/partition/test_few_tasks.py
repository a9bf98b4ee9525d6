"""A few micro-batches of a device's tasks, which tell the times of all."""

import pytest

from fpgapipe.lowering.lower import tasks_of_stages
from fpgapipe.lowering.schedule.tasks import slots_of
from fpgapipe.partition.pricing.few_tasks import cases_of, few_tasks, like
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

STAGES, COUNT = 4, 16


def lanes(kind, *, train=True, count=COUNT):
    return tasks_of_stages(make_schedule(kind, STAGES, count), STAGES, train=train)


def text(tasks):
    return " ".join(f"{task.kind.name}{task.microbatch}" for task in tasks)


def test_all_passes_that_follow_each_other_are_there():
    """The third of four devices fills its part of the pipeline, alternates, and drains it."""
    few = few_tasks(lanes("1f1b-as")[2], 4)
    assert text(few) == "F0 F1 B0 F2 B1 F3 B2 B3 U-1"
    assert text(few_tasks(lanes("gpipe", train=False)[0], 4)) == "F0 F1 F2 F3"


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-as", "1f1b-so", "zb-h1"])
def test_every_case_is_among_a_few(kind):
    for tasks in lanes(kind):
        few = few_tasks(tasks, 8)
        assert set(cases_of(few)) >= set(cases_of(tasks))
        assert len({task.microbatch for task in few}) <= 8
        assert few == [task for task in tasks if task in few]
        assert (max(slots_of(few).values()) > 0) == (max(slots_of(tasks).values()) > 0)
        chosen = [few[number] for number in like(tasks, few)]
        assert cases_of(tasks) == [cases_of(few)[few.index(task)] for task in chosen]


def test_with_too_few_the_kinds_agree():
    for tasks in lanes("zb-h1"):
        few = few_tasks(tasks, 2)
        assert len({task.microbatch for task in few} - {-1}) == 2
        assert [few[n].kind for n in like(tasks, few)] == [task.kind for task in tasks]
        firsts = [case[:2] for case in cases_of(tasks)]
        assert [cases_of(few)[n][:2] for n in like(tasks, few)] == firsts


def test_two_micro_batches_are_all():
    tasks = lanes("1f1b-as", count=2)[0]
    assert few_tasks(tasks, 2) == tasks

"""The best plan by whole programs."""

from dataclasses import replace
from itertools import product

import pytest
from run_cases import small_network

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.jobs import local_processes, sharing
from fpgapipe.network.load import load_network
from fpgapipe.partition.cost.cores import core_of
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.explore.smallest import THROUGHPUT
from fpgapipe.partition.pricing import best_plan as search
from fpgapipe.partition.pricing import machine, tried
from fpgapipe.partition.pricing.best_plan import best_plan

KINDS = ("1f1b-as", "zb-h1")


def digits(samples):
    """The network for which formulas like a wider array than is best."""
    return load_network("digits-cnn", samples)


def mini(samples):
    """A network that takes about as long in few micro-batches as in more."""
    return load_network("resnet-mini", samples)


def asked(devices, **more):
    cluster = chain_of(load_board("u280"), devices).spec
    return Request(digits, 32, cluster, KINDS, **more)


@pytest.mark.parametrize(("devices", "kinds"), [(1, KINDS), (2, KINDS), (1, ("1f1b-as", "fbp-as"))])
def test_the_choice_is_nearly_the_best_of_all(devices, kinds):
    request = replace(asked(devices), schedules=kinds)
    found = best_plan(request, "digits").plan
    rates = {}
    for shape, count, kind in product([(32, 32), (32, 64), (16, 64)], (1, 2, 4), kinds):
        one = replace(request, array=shape, num_microbatches=count, schedules=(kind,))
        rates[shape, count, kind] = best_plan(one, "digits").plan.predicted.samples_per_s
    best = max(rates.values())
    assert found.predicted.level == "machine"
    assert found.predicted.samples_per_s >= 0.99 * best


def test_the_smallest_core_is_nearly_as_fast():
    request = asked(1, num_microbatches=1)
    best = best_plan(request, "digits").plan
    small = best_plan(request, "digits", smallest=True)
    (core,) = [node.core for node in small.plan.nodes]
    largest = best.nodes[0].core
    assert (core.cells, core.scratchpad.size_bytes) < (
        largest.cells,
        largest.scratchpad.size_bytes,
    )
    rate = best.predicted.samples_per_s
    assert small.plan.predicted.samples_per_s >= THROUGHPUT * rate
    assert small.compared.endswith(
        f"this is the smallest core found within 1% of the fastest, {largest.rows}x{largest.cols} "
        f"with {rate:.0f} samples/s"
    )


def test_a_plan_is_priced_once_where_the_bus_is_as_fast_as_the_memory(tmp_path, monkeypatch):
    """The plan that comes back from a file has the price of the one that was tried."""
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path))
    monkeypatch.setenv("FPGAPIPE_ANSWERS", "1")
    priced = []
    found = machine._found

    def find(plan, *rest):
        priced.append(plan)
        return found(plan, *rest)

    monkeypatch.setattr(machine, "_found", find)
    cluster = chain_of(load_board("u250"), 1).spec
    request = Request(small_network, 4, cluster, ("1f1b-as",), 2, array=(8, 8))
    node = best_plan(request, "small").plan.nodes[0]
    assert node.spec.memory_bytes_per_cycle == node.core.bus_bytes
    assert len(priced) == 1


def test_processes_find_the_same():
    request = replace(asked(1), load=small_network, batch=4, num_microbatches=2)
    alone = best_plan(request, "small")
    with sharing(lambda: local_processes(2)):
        shared = best_plan(request, "small")
    assert shared.plan == alone.plan
    assert shared.compared == alone.compared


def test_few_programs_find_the_best_plan(monkeypatch):
    """How far prices of layers are off is known of plans with as many engines and micro-batches."""
    request = replace(asked(2), schedules=("1f1b-as", "fbp-as"), array=(32, 32))
    timed = []

    def slower(request, graph, plan):
        timed.append((plan.engines, plan.plan.num_microbatches))
        engines, count = plan.engines, plan.plan.num_microbatches
        seconds = plan.seconds * (1.0 if engines == 1 else {2: 1.05, 4: 1.3}.get(count, 1.7))
        predicted = plan.predicted.model_copy(update={"minibatch_s": seconds, "level": "machine"})
        return replace(plan, predicted=predicted, by_layers_s=plan.seconds)

    for module in (search, tried):
        monkeypatch.setattr(module, "timed", slower)
    monkeypatch.setattr(search, "price_plan", lambda plan, *_, **__: (plan, None))
    monkeypatch.setattr(search, "effort_of_programs", lambda plan: 2.0)
    best = best_plan(request, "digits").plan
    assert (best.schedule, best.num_microbatches) == ("fbp-as", 2)
    assert len(timed) == len(set(timed)) <= 4


def test_the_longer_a_mini_batch_takes_the_longer_the_search(monkeypatch):
    monkeypatch.setattr(search, "effort_of", lambda plan, share: 100.0)
    request = replace(asked(1, array=(32, 32)), load=mini, batch=8)
    compared = []
    for batches in (0.0, 1e9):
        monkeypatch.setattr(search, "LONG_BATCHES", batches)
        compared.append(best_plan(request, "mini").compared)
    assert compared[0].startswith("compared by whole programs: 1 plan from 1 of 4 pairs")
    assert compared[1].startswith("compared by whole programs: 2 plans from 2 of 4 pairs")


def test_what_takes_long_to_time_makes_room_for_the_next(monkeypatch):
    request = replace(asked(2), load=small_network, batch=4)
    first = best_plan(request, "small").plan
    soon = search.is_soon_priced

    def is_soon(plan):
        return plan.num_microbatches != first.num_microbatches and soon(plan)

    monkeypatch.setattr(search, "is_soon_priced", is_soon)
    monkeypatch.setattr(tried, "is_soon_priced", is_soon)
    found = best_plan(request, "small").plan
    assert found.predicted.level == "machine"
    assert found.num_microbatches != first.num_microbatches
    for module in (search, tried):
        monkeypatch.setattr(module, "is_soon_priced", lambda plan: False)
    found = best_plan(request, "small")
    assert found.plan.predicted.level == "estimate"
    assert found.compared == "compared by estimates alone"


def test_what_cannot_be_lowered_makes_room_for_the_next(monkeypatch):
    request = replace(asked(2), load=small_network, batch=4)
    first = best_plan(request, "small").plan
    price = tried.price_with_room

    def refusing(plan, *rest):
        if plan.num_microbatches == first.num_microbatches:
            raise UserError("a layer does not fit")
        return price(plan, *rest)

    monkeypatch.setattr(tried, "price_with_room", refusing)
    found = best_plan(request, "small")
    assert found.plan.predicted.level == "machine"
    assert found.plan.num_microbatches != first.num_microbatches
    assert found.built["possible"]


@pytest.mark.parametrize("has_plans", [False, True])
def test_effort_without_a_plan_is_not_counted(has_plans, monkeypatch):
    """The memory has no room for any cut, by prices of layers, or for the programs of one."""
    request = replace(asked(2), load=small_network, batch=4)
    first = best_plan(request, "small").plan
    plans_of, price = search.plans_of, tried.price_with_room
    monkeypatch.setattr(search, "effort_of", lambda *_: search.PRICES_S)
    monkeypatch.setattr(search, "effort_of_layers", lambda plan: search.PRICES_S)
    looked = []

    def some(request, network, count, *rest):
        looked.append(count)
        fails = count == first.num_microbatches and not has_plans
        return [] if fails else plans_of(request, network, count, *rest)

    def refusing(plan, *rest):
        if plan.num_microbatches == first.num_microbatches:
            raise UserError("the memory is full")
        return price(plan, *rest)

    monkeypatch.setattr(search, "plans_of", some)
    monkeypatch.setattr(tried, "price_with_room", refusing)
    found = best_plan(request, "small").plan
    assert found.predicted.level == "machine"
    assert found.num_microbatches != first.num_microbatches
    assert looked[0] != looked[1]


def test_combinations_that_are_not_built_are_left_out(monkeypatch):
    """A loss of too many labels in a micro-batch, for instance."""
    request = replace(asked(2), load=small_network, batch=4)
    first = best_plan(request, "small").plan
    check = search.check_network

    def refusing(graph, *, train):
        if graph.batch == first.microbatch:
            raise UserError("too many labels")
        check(graph, train=train)

    monkeypatch.setattr(search, "check_network", refusing)
    found = best_plan(request, "small")
    assert found.plan.predicted.level == "machine"
    assert found.plan.num_microbatches != first.num_microbatches
    assert found.built["possible"]


def test_a_device_alone_is_tried_with_more_cores_than_in_a_chain_of_unlike_ones():
    """The best core of a U280 alone need not be its first, and ZCU102 help it little."""
    chain = chain_of(load_board("u280"), 3).spec
    u280, zcu102 = chain.devices[0], chain_of(load_board("zcu102"), 1).spec.devices[0]
    unlike = replace(chain, devices=(u280, zcu102, zcu102))
    request = replace(asked(1), cluster=unlike)
    alone = replace(request, num_microbatches=1, array=(32, 32))
    found = best_plan(request, "digits").plan.predicted.samples_per_s
    assert found >= best_plan(alone, "digits").plan.predicted.samples_per_s


def test_cores_that_are_about_as_fast_are_priced_once():
    """A chain from its other end, and arrays with other savings, take no effort of their own."""
    cluster = chain_of(load_board("u55c"), 1, 3).spec
    nodes = [core_of(device, 32, 64, num_links=2) for device in cluster.devices]
    wide = core_of(cluster.devices[2], 32, 128, num_links=2)
    fewer = replace(nodes[0], core=replace(nodes[0].core, form=Form.PACKED))
    slower = replace(wide, memory_bytes_per_cycle=wide.memory_bytes_per_cycle / 2)

    def name(*cores, is_alike=True):
        return search._name_of(list(cores), is_alike=is_alike)

    first = name(nodes[0], nodes[1], wide)
    assert first == name(wide, nodes[1], nodes[0]) == name(fewer, nodes[1], wide)
    one_way, other_way = (
        name(*cores, is_alike=False)
        for cores in ((nodes[0], nodes[1], wide), (wide, nodes[1], nodes[0]))
    )
    assert one_way != other_way
    assert first != name(nodes[0], wide, nodes[1])
    assert first != name(nodes[0], nodes[1], slower)
    assert search._is_alike_from_either_end(cluster, [1.0])
    unlike = replace(
        cluster.devices[0], memories=(replace(cluster.devices[0].memories[0], size_bytes=1 << 30),)
    )
    devices = (unlike, *cluster.devices[1:])
    unlike = replace(cluster, devices=devices)
    least = min(each.memory_bytes for each in devices)
    assert search._is_alike_from_either_end(unlike, [1.0, least])
    assert not search._is_alike_from_either_end(unlike, [1.0, least + 1])

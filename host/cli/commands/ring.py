"""``fpgapipe ring``: trains several models that travel around devices whose samples stay."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.cluster_options import cluster_options
from fpgapipe.host.cli.options.completion import networks_that_begin
from fpgapipe.host.cli.options.options import command, parse_array

if TYPE_CHECKING:
    from pathlib import Path

    from fpgapipe.boards.cluster import Cluster
    from fpgapipe.host.ring.ring_build import RingBuild
    from fpgapipe.host.ring.ring_training import RingResult
    from fpgapipe.host.runtime.settings import Settings
    from fpgapipe.partition.strategies.ring import RingCost

MOST_MODELS = 256
"""Most models of a ring."""


@command(
    "ring",
    example="fpgapipe ring digits-cnn digits-cnn --board u280 --array 4x4 --batch 8 --plan",
    lowers=True,
)
@click.argument(
    "networks",
    metavar="MODEL MODEL ...",
    nargs=-1,
    shell_complete=networks_that_begin,
)
@partial(cluster_options, default_devices=2)
@click.option(
    "--data",
    default="digits",
    show_default=True,
    metavar="digits|random|FILE.npz|FOLDER",
    help="Samples, of which each device gets a part that never leaves it; as for 'run'.",
)
@click.option(
    "--epochs",
    type=ranges.EPOCHS,
    default=1,
    show_default=True,
    help="Passes of each model through all samples: visits to all devices.",
)
@click.option(
    "--batch",
    type=ranges.SAMPLES,
    default=32,
    show_default=True,
    help="Samples in a mini-batch, after which the weights are updated.",
)
@click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    help="Equal parts of a mini-batch [default: the best of several].",
)
@click.option(
    "--array",
    metavar="RxC",
    help="Rows and columns of each device's array of cells [default: as few as are fast].",
)
@click.option(
    "--learning-rate",
    "learning_rates",
    type=ranges.LEARNING_RATE,
    multiple=True,
    help="Learning rate of SGD; give it once for all models, or once for each [default: as 'run'].",
)
@click.option(
    "--momentum",
    type=ranges.MOMENTUM,
    default=0.9,
    show_default=True,
    help="Share of its last update that SGD keeps.",
)
@click.option(
    "--weight-decay",
    type=ranges.WEIGHT_DECAY,
    default=1e-4,
    show_default=True,
    help="Share of each weight that is added to its gradient.",
)
@click.option(
    "--seed",
    type=ranges.SEED,
    default=0,
    show_default=True,
    help="Seed of the order of the samples and of the first model's random parameters; each "
    "further model has the next number.",
)
@click.option(
    "--backend",
    type=click.Choice(["model", "sim"]),
    default="model",
    show_default=True,
    help="What runs: the bit-exact model, or simulated devices.",
)
@click.option(
    "--check", is_flag=True, help="Run the other backend beside, and compare all memories."
)
@click.option(
    "--shuffled",
    is_flag=True,
    help="Also train each model alone on shuffled samples of all, and compare the accuracies.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Compare an imported network with its source first; refuse one that differs.",
)
@click.option("--plan", "plan_only", is_flag=True, help="Only plan; train nothing.")
@click.option(
    "--samples",
    type=ranges.SAMPLES,
    help="With --plan: samples of the training set, instead of those of --data.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint of the last whole round.")
@click.option(
    "--threads",
    type=ranges.THREADS,
    help="Threads for the simulation [default: one for each processor].",
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    default="out/ring",
    show_default=True,
    help="Folder for the plan, the Verilog, programs, the log, checkpoints and trained parameters.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ring(networks: tuple[str, ...], cluster: Cluster, as_json: bool, **options: Any) -> int:
    """Train several models in a ring: each device keeps its part of the samples, models travel.

    Each MODEL is a network, by name or file, as for 'inspect'; the same name may come several
    times. A model visits one device after the other, is trained there on the samples of the device,
    and hops to the next one with its weights and the optimiser's values.
    """
    from pathlib import Path

    from fpgapipe.errors import UserError
    from fpgapipe.host.data.data import load_data
    from fpgapipe.host.data.sample_checks import check_samples
    from fpgapipe.host.make.build import compared
    from fpgapipe.host.make.networks import loader
    from fpgapipe.host.ring.ring_build import check_one_output, make_ring_build
    from fpgapipe.host.ring.ring_folder import RingFolder
    from fpgapipe.host.ring.ring_training import RingTrainer
    from fpgapipe.host.ring.shards import shard_size
    from fpgapipe.host.terminal.console import print_json, progress
    from fpgapipe.lowering.units.network_units import check_network
    from fpgapipe.partition.explore.planned import one_link_each
    from fpgapipe.partition.strategies.plan_ring import plan_ring, ring_cost
    from fpgapipe.stopwatch import phase

    if not 2 <= len(networks) <= MOST_MODELS:
        raise UserError(
            f"a ring has 2 to {MOST_MODELS} models, not {len(networks)}; name one "
            "several times to train it from several seeds"
        )
    if options["samples"] is not None and not options["plan_only"]:
        raise UserError("--samples is a number to plan with: use it with --plan, or give --data")
    settings = _settings(options, len(networks))
    array, batch = parse_array(options["array"]), options["batch"]
    folder = RingFolder(Path(options["folder"]))
    if not options["plan_only"]:
        folder.check(resumes=options["resume"])
    loads = {name: loader(name) for name in networks}
    models = [(name, loads[name]) for name in networks]
    size = batch // (options["micro_batches"] or 1)
    for load in loads.values():
        check_network(load(size), train=True)
        check_one_output(load(size))
        if (
            options["verify"]
            and not options["plan_only"]
            and (note := compared(load, batch, options["micro_batches"], train=True))
        ):
            print(note)
    data = None
    if options["samples"] is None:
        data = load_data(options["data"], models[0][1](size))
        for load in loads.values():
            check_samples(data.train, load(size))
    spec = one_link_each(cluster.spec)
    total = options["samples"] if data is None else len(data.train.labels)
    shard = shard_size(total, len(spec.devices), batch)
    with phase("planning"):
        plan = plan_ring(models, batch, spec, options["micro_batches"], array)
        cost = ring_cost(plan, models, spec, options["epochs"], shard)
    if data is None or options["plan_only"]:
        if as_json:
            print_json(cost.to_dict())
        else:
            _print_plan(cost)
        return 0
    with progress() as display:
        display.add_task("making programs")
        with phase("programs"):
            build = make_ring_build(plan, [load for _, load in models], spec, seed=options["seed"])
        folder.write(build, cost)
        trainer = RingTrainer(
            build,
            data,
            settings,
            folder.path,
            backend=options["backend"],
            checks=options["check"],
            threads=options["threads"],
            on_round=lambda done, total: display.update(
                description="rounds", completed=done, total=total
            ),
        )
        if options["resume"]:
            trainer.resume()
        result = trainer.run(shuffled=options["shuffled"])
    folder.keep(result)
    if as_json:
        print_json({"plan": cost.to_dict(), "run": _figures(result, build, options["backend"])})
    else:
        _print_plan(cost)
        print()
        _print_result(result, folder.path, options["backend"], checked=options["check"])
    return 1 if result.difference else 0


def _settings(options: dict[str, Any], count: int) -> list[Settings]:
    from fpgapipe.errors import UserError
    from fpgapipe.host.runtime.settings import Settings

    rates = options["learning_rates"] or (None,)
    if len(rates) not in (1, count):
        raise UserError(
            f"--learning-rate must be given once, or once for each of {count} models, not "
            f"{len(rates)} times"
        )
    return [
        Settings(
            epochs=options["epochs"],
            seed=options["seed"],
            learning_rate=rates[model % len(rates)],
            momentum=options["momentum"],
            weight_decay=options["weight_decay"],
            data=options["data"],
        )
        for model in range(count)
    ]


def _print_plan(cost: RingCost) -> None:
    """Print the visits, the formula of the whole time, and when a ring pays."""
    from fpgapipe.host.terminal.console import Column, count, print_table, scaled

    rows = [
        (
            number,
            model.network,
            scaled(model.step_s, "s"),
            scaled(visit, "s"),
            scaled(model.state_bytes, "B"),
        )
        for number, (model, visit) in enumerate(zip(cost.models, cost.visits_s, strict=True))
    ]
    columns = [
        Column("model", True),
        Column("network"),
        Column("mini-batch", True),
        Column("visit", True),
        Column("travels", True),
    ]
    title = (
        f"{len(cost.models)} models in a ring of {cost.devices} devices, each with "
        f"{count(cost.shard_samples)} samples: {cost.visit_steps} mini-batches of {cost.batch} a "
        "visit"
    )
    print_table(columns, rows, title)
    visits = " + ".join(
        f"({scaled(visit, 's')} + {scaled(cost.hop_s, 's')})" for visit in cost.longest_visits_s
    )
    print(f"T = E S (v + x) = {cost.epochs} x {cost.devices} x {visits} = {_s(cost.total_s)}")
    print(
        f"utilisation K/S = {len(cost.models)}/{cost.groups * cost.devices} = "
        f"{cost.utilisation:.1%}; {cost.busy:.1%} with hops and waiting"
    )
    word = "fewer" if cost.moves_less else "no fewer"
    print(
        f"bytes a visit: {count(cost.state_bytes)} in a ring; with one model a device, (D/S) x "
        f"sample = {count(cost.shard_samples)} x {cost.sample_bytes} = {count(cost.shard_bytes)}. "
        f"The ring moves {word}; from {count(cost.pays_from_samples)} samples a device on, fewer"
    )
    print(
        f"one model a device: E S max(v, stream) = {_s(cost.streamed_s)}, with a stream of "
        f"{_s(cost.stream_s)} while it computes a visit; {_s(cost.streamed_first_s)} if it waits"
    )
    faster = "The ring is faster" if cost.is_faster else "The ring is not faster"
    if cost.moves_less:
        limit = scaled(cost.pays_below_bytes_per_s, "B/s")
        print(f"{faster}; it is where a wire carries less than (shard - model) / v = {limit}")
    else:
        print(f"{faster}: no wire is so slow that it would be")


def _s(seconds: float) -> str:
    from fpgapipe.host.terminal.console import scaled

    return scaled(seconds, "s")


def _figures(result: RingResult, build: RingBuild, backend: str) -> dict[str, Any]:
    return {
        "backend": backend,
        "rounds": result.rounds,
        "visit_cycles": result.visit_cycles,
        "hop_cycles": result.hop_cycles,
        "predicted_hop_cycles": result.predicted_hop_cycles,
        "hop_bytes": result.hop_bytes,
        "clk_hz": build.plan.clk_hz,
        "wall_s": result.wall_s,
        "difference": result.difference or None,
        "models": [
            {
                "network": model.network,
                "loss": model.loss,
                "accuracy": model.accuracy,
                "shuffled_accuracy": model.shuffled_accuracy,
            }
            for model in result.models
        ],
    }


def _print_result(result: RingResult, folder: Path, backend: str, *, checked: bool) -> None:
    import sys

    from fpgapipe.host.terminal.console import Column, count, print_table, scaled

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.2%}"

    columns = [
        Column("model", True),
        Column("network"),
        Column("loss of the last", True),
        Column("accuracy", True),
        Column("shuffled, alone", True),
    ]
    rows = [
        (
            number,
            each.network,
            "" if each.loss is None else f"{each.loss:.4f}",
            share(each.accuracy),
            share(each.shuffled_accuracy),
        )
        for number, each in enumerate(result.models)
    ]
    print_table(columns, rows, f"trained in {result.rounds} rounds, {backend}")
    hops = f"{count(result.predicted_hop_cycles)} cycles by the cycle model"
    if result.hop_cycles is not None and result.visit_cycles is not None:
        print(f"visits: {count(result.visit_cycles)} cycles simulated")
        hops = f"{count(result.hop_cycles)} cycles simulated, {hops}"
    print(f"hops: {count(result.hop_bytes)} bytes, {hops}")
    print(f"wall time {scaled(result.wall_s, 's')}; kept in {folder}")
    if result.difference:
        print(f"difference: {result.difference}", file=sys.stderr)
    elif checked:
        print("every byte of every memory equal to the other backend's")

"""``fpgapipe run``: what a build computes, simulated and checked."""

from __future__ import annotations

import click

from fpgapipe.host.commands.options import command


@command("run", example="fpgapipe run out/digits-cnn")
@click.argument("folder", metavar="DIR")
@click.option(
    "--tiles",
    type=click.IntRange(min=1),
    help="At most so many tiles of each product [default: all].",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random operands.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def run(folder: str, tiles: int | None, seed: int, as_json: bool) -> None:
    """Simulate the build in DIR cycle by cycle in Verilator, and check every number.

    So far: all matrix products of a forward pass, on random 8-bit operands. Sums must equal the
    exact product, and cycles those that the model predicts.
    """
    from pathlib import Path

    from fpgapipe.host.build import holding, open_build
    from fpgapipe.host.console import Column, count, print_json, print_table, progress
    from fpgapipe.host.runtime import run_forward_products

    with holding(Path(folder)), progress() as display:
        build = open_build(Path(folder))
        task = display.add_task("simulating stages", total=len(build.plan.stages))
        results = run_forward_products(
            build, tiles=tiles, seed=seed, on_stage=lambda stage: display.advance(task)
        )
    cycles = sum(each.simulated_cycles for each in results)
    if as_json:
        import dataclasses

        layers = [dataclasses.asdict(each) for each in results]
        print_json({"network": build.plan.network, "simulated_cycles": cycles, "layers": layers})
        return
    print_table(
        [
            Column("stage", number=True),
            Column("layer"),
            Column("tiles", number=True),
            Column("predicted cycles", number=True),
            Column("simulated cycles", number=True),
        ],
        [
            (
                each.stage,
                each.layer,
                count(each.num_tiles),
                count(each.predicted_cycles),
                count(each.simulated_cycles),
            )
            for each in results
        ],
        title=f"{build.plan.network}: forward products in Verilator",
    )
    print(f"every sum equals the exact product, every cycle count the model's ({cycles:,} cycles)")

"""Runs a build: so far, the forward products of every stage, simulated and checked."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.build import Build
from fpgapipe.host.lowering import Product, forward_products
from fpgapipe.partition.graph import Graph
from fpgapipe.partition.load import load_network
from fpgapipe.sim_tb.simulate import simulate_verilog

MAX_CYCLES = 2_000_000
"""Longer simulations (minutes) are asked for with ``tiles``."""


class MismatchError(Exception):
    """The simulated hardware computed something else than its model: a defect of fpgapipe."""


@dataclass(frozen=True)
class LayerResult:
    """A layer's products through the simulated array, all equal to the model's.

    Attributes
    ----------
    stage : int
    layer : str
    num_tiles : int
        Tiles that were simulated.
    predicted_cycles, simulated_cycles : int
        Of these tiles.
    """

    stage: int
    layer: str
    num_tiles: int
    predicted_cycles: int
    simulated_cycles: int


def run_forward_products(
    build: Build,
    *,
    tiles: int | None = None,
    seed: int = 0,
    on_stage: Callable[[int], None] = lambda stage: None,
) -> list[LayerResult]:
    """Simulate every matrix product of a forward pass on random operands, and check it.

    Parameters
    ----------
    build : Build
    tiles : int, optional
        At most so many tiles of each product, cut off along the output channels; all if not given.
    seed : int
        Of the operands.
    on_stage : function
        Called with a stage's index when it is done.

    Raises
    ------
    UserError
        If all products would take over ``MAX_CYCLES``, or the network cannot be read again or is
        not the one that was built.
    MismatchError
        If a sum or a cycle count differs from the model's.
    """
    graph = _network_of(build)
    stages = [
        list(forward_products(graph, each.layers, build.array(i)[0]))
        for i, each in enumerate(build.plan.stages)
    ]
    if tiles is not None:
        stages = [[_shortened(product, tiles) for product in stage] for stage in stages]
    cycles = sum(product.cycles for product in itertools.chain(*stages))
    if cycles > MAX_CYCLES:
        raise UserError(
            f"{build.plan.network} takes {cycles:,} cycles, over the {MAX_CYCLES:,} that are "
            "simulated; '--tiles 4' runs a sample of each product"
        )
    rng = np.random.default_rng(seed)
    results = []
    for index, products in enumerate(stages):
        results += _run_stage(build, index, products, rng)
        on_stage(index)
    return results


def _network_of(build: Build) -> Graph:
    """Read the network again that a build was made from."""
    plan = build.plan
    try:
        graph = load_network(plan.network, plan.microbatch)
    except UserError as error:
        raise UserError(f"{build.folder} needs the network it was built from: {error}") from None
    macs = {name: layer.macs for name, layer in graph.layers.items()}
    names = {name for stage in plan.stages for name in stage.layers}
    if names != macs.keys() or any(
        stage.macs != sum(macs[name] for name in stage.layers) for stage in plan.stages
    ):
        raise UserError(
            f"{plan.network} has changed since {build.folder} was built from it; build it again"
        )
    return graph


def _shortened(product: Product, tiles: int) -> Product:
    """The product with fewer output channels, and then inputs, so that `tiles` are left."""
    rows, cols = product.spec.rows, product.spec.cols
    k_tiles = min(-(-product.k // rows), tiles)
    n_tiles = max(1, min(-(-product.n // cols), tiles // k_tiles))
    k, n = min(product.k, k_tiles * rows), min(product.n, n_tiles * cols)
    return dataclasses.replace(product, k=k, n=n)


def _run_stage(
    build: Build, index: int, products: list[Product], rng: np.random.Generator
) -> list[LayerResult]:
    if not products:
        return []
    operands = []
    arrays = {}
    for i, product in enumerate(products):
        x = rng.integers(-128, 128, (product.m, product.k))
        w = rng.integers(-128, 128, (product.k, product.n))
        operands.append((x, w))
        arrays[f"weights{i}"], arrays[f"activations{i}"] = product.tiles(x, w)
    # In the build, where the simulator's log stays.
    work = (build.folder / "sim" / f"stage{index}").absolute()
    try:
        work.mkdir(parents=True, exist_ok=True)
        np.savez(work / "operands.npz", allow_pickle=False, **arrays)
    except OSError as error:
        raise UserError(f"{work} cannot be written: {error.strerror}") from None
    spec, verilog = build.array(index)
    parameters = {**dataclasses.asdict(spec), "folder": str(work)}
    simulate_verilog(verilog, "tb_products", work, parameters=parameters, seed=0)
    with np.load(work / "results.npz", allow_pickle=False) as file:
        found = dict(file)
    for name in ("operands.npz", "results.npz"):
        (work / name).unlink()
    layers: dict[str, LayerResult] = {}
    for i, (product, (x, w)) in enumerate(zip(products, operands, strict=True)):
        where = f"stage {index}, layer {product.layer!r}, product {product.index}"
        sums, exact = product.gather(found[f"sums{i}"]), x @ w
        for row, col in np.argwhere(sums != exact)[:1]:
            raise MismatchError(
                f"{where}: sum [{row}, {col}] is {sums[row, col]}, the model's is {exact[row, col]}"
            )
        cycles = int(found[f"cycles{i}"])
        if cycles != product.cycles:
            raise MismatchError(f"{where}: {cycles} cycles, the model's are {product.cycles}")
        known = layers.get(product.layer, LayerResult(index, product.layer, 0, 0, 0))
        layers[product.layer] = dataclasses.replace(
            known,
            num_tiles=known.num_tiles + product.num_tiles,
            predicted_cycles=known.predicted_cycles + product.cycles,
            simulated_cycles=known.simulated_cycles + cycles,
        )
    return list(layers.values())

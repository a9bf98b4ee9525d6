"""Layer-wise plans by formulas, of networks for which no programs are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpgapipe.partition.explore.explorer import Request


def print_any_degrees(request: Request, options: dict[str, Any], reason: str) -> None:
    """Find degrees of all layers by formulas, for a network that is not built; print them.

    Parameters
    ----------
    request : Request
    options : dict
        Options of ``plan``.
    reason : str
        Why the network is not built.
    """
    import json

    from fpgapipe.errors import UserError
    from fpgapipe.host.terminal.console import Column, print_json, print_table, progress, scaled
    from fpgapipe.host.terminal.outputs import write_output
    from fpgapipe.partition.strategies.plan_layerwise import plan_any_degrees

    for name in ("explain", "html", "svg", "trace"):
        if options[name]:
            raise UserError(f"--{name} needs programs, and none are made: {reason}")
    with progress() as display:
        display.add_task("pricing layers")
        found = plan_any_degrees(
            request, lambda done, total: display.update(completed=done, total=total)
        )
    if options["output"]:
        write_output(options["output"], json.dumps(found.to_dict(), indent=2) + "\n")
    if options["as_json"]:
        print_json(found.to_dict())
        return
    print_table(
        [
            Column("layers"),
            Column("degrees"),
            *(Column(text, True) for text in ("devices", "compute", "gradient sum", "memory")),
        ],
        [
            (
                group.layers[0]
                if len(group.layers) == 1
                else f"{group.layers[0]} + {len(group.layers) - 1}",
                str(group.degrees),
                group.degrees.num_devices,
                scaled(group.compute_s, "s"),
                scaled(group.sum_s, "s"),
                scaled(group.memory_bytes, "B", 1024),
            )
            for group in found.groups
        ],
        f"{found.network}, batch {found.batch}, layer-wise on {found.num_devices} devices",
    )
    print(
        f"estimated: {scaled(found.step_s, 's')} a mini-batch, {scaled(found.moves_s, 's')} of it "
        f"moves activations; {scaled(found.data_parallel_s, 's')} if all layers cut the batch, "
        f"{scaled(found.serial_s, 's')} on one device"
    )
    proof = "optimal by these prices" if found.is_optimal else "the best found in these memories"
    print(f"{proof}; {found.num_left} nodes left, searched in {scaled(found.search_s, 's')}")
    print(f"\nnote: 'fpgapipe build' cannot make this plan: {reason}")

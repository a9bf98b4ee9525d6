"""``fpgapipe bench``: measurements on the simulated hardware."""

import click

from fpgapipe.host.cli.lazy_group import LazyGroup


@click.group(
    "bench",
    cls=LazyGroup,
    lazy={
        "cluster": (
            "bench_cluster",
            "Run a chain of training cores on simulated hardware, links included, on random data.",
        ),
        "core": (
            "bench_core",
            "Run one pass of LAYER on the training core's hardware, on random data.",
        ),
        "link": (
            "bench_link",
            "Run both ends of a link on the simulated hardware, on random words, and measure it.",
        ),
        "step": (
            "bench_core",
            "Run one training step of NETWORK on the training core's hardware, on random data.",
        ),
    },
    epilog="Example: fpgapipe bench core --rows 8 --cols 8 --layer gemm:m=64,n=64,k=64",
)
def bench() -> None:
    """Measure the simulated hardware, and check it against its model."""

"""Options that several commands have."""

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.hw.hls_models.spec.systolic import Form

strategy_option = click.option(
    "--strategy",
    metavar="NAME|FILE",
    default="pipeline",
    help="Stages of the network in a pipeline (pipeline), such as merging of layers makes (merge), "
    "all of it on each device (data), all layers cut by output channels (filter), input channels "
    "(channel) or rows (spatial), the same in groups of devices that share the samples "
    "(data+filter, data+channel, data+spatial), each layer cut as is fastest (layerwise), a "
    "pipeline of groups of devices (hybrid), several equal pipelines that share the samples "
    "(replicas), the fastest of pipeline, data, layerwise, hybrid and replicas (auto), or a file "
    "that says how each layer is cut.",
)

micro_batches_option = click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    help="Equal parts of a mini-batch in the pipeline [default: the best of several].",
)

momentum_option = click.option(
    "--momentum", type=ranges.MOMENTUM, default=0.9, help="Share of its last update that SGD keeps."
)

threads_option = click.option(
    "--threads",
    type=ranges.THREADS,
    help="Threads for the simulation [default: one for each processor].",
)

trained_batch_option = click.option(
    "--batch",
    type=ranges.SAMPLES,
    default=32,
    help="Samples in a mini-batch, after which the weights are updated.",
)

planned_batch_option = click.option(
    "--batch", type=ranges.SAMPLES, default=64, help="Samples in a mini-batch."
)

addresses_option = click.option(
    "--cluster",
    "cluster_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="File that says at which addresses boards are reached.",
)

array_option = click.option(
    "--array",
    metavar="RxC",
    help="Rows and columns of each device's array of cells [default: as few as are fast].",
)

cells_option = click.option(
    "--cells",
    type=click.Choice([form.value for form in Form]),
    help="How cells are made: one a DSP, or packed, two a DSP48E2 with the same sums [default: "
    "packed where no array of so many plain ones fits].",
)

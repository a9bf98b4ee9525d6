"""Suggestions for words that other tools know and fpgapipe does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMANDS = {
    **dict.fromkeys(("train", "training", "fit", "simulate", "sim", "resume", "evaluate"), "run"),
    **dict.fromkeys(("classify", "test"), "predict"),
    **dict.fromkeys(("infer", "inference"), "build --mode infer"),
    **dict.fromkeys(("compile", "synth", "synthesize", "package"), "build"),
    **dict.fromkeys(("networks", "models", "show", "summary"), "inspect"),
    **dict.fromkeys(("devices", "list"), "boards"),
    **dict.fromkeys(("partition", "search"), "plan"),
    **dict.fromkeys(("init", "create"), "new"),
    **dict.fromkeys(("save", "convert"), "export"),
    **dict.fromkeys(("check", "setup"), "doctor"),
    "sample": "generate",
    "sweep": "explore",
    "timeline": "schedule",
}
"""Commands of fpgapipe by the names that they have elsewhere."""

OPTIONS = {
    **dict.fromkeys(("--lr", "--rate"), "--learning-rate"),
    **dict.fromkeys(("--model", "--net"), "--network"),
    **dict.fromkeys(("--batch-size", "--bs"), "--batch"),
    **dict.fromkeys(("--microbatches", "--microbatch", "--num-microbatches"), "--micro-batches"),
    **dict.fromkeys(("--iterations", "--iters", "--max-steps"), "--steps"),
    **dict.fromkeys(("--warmup", "--warmup-steps"), "--warm-up"),
    **dict.fromkeys(("--optimizer", "--opt"), "--optimiser"),
    **dict.fromkeys(("--weights", "--checkpoint", "--state-dict"), "--parameters"),
    **dict.fromkeys(("--continue", "--restart"), "--resume"),
    **dict.fromkeys(("--clip", "--grad-clip", "--max-grad-norm"), "--clip-norm"),
    **dict.fromkeys(("--scheduler", "--lr-schedule", "--lr-scheduler"), "--rate-schedule"),
    **dict.fromkeys(("--out", "--output-dir", "--file"), "--output"),
    **dict.fromkeys(("--boards", "--num-devices", "--fpgas"), "--devices"),
    **dict.fromkeys(("--dataset", "--samples"), "--data"),
    **dict.fromkeys(("--gpu", "--cuda"), "--device"),
    "--wd": "--weight-decay",
    "--random-seed": "--seed",
}
"""Options of fpgapipe by the names that they have elsewhere."""

BACKENDS = {
    **dict.fromkeys(
        ("gpu", "cuda", "cpu", "pytorch"),
        "PyTorch computes with --backend torch, on a GPU if there is one (--device cuda says so)",
    ),
    **dict.fromkeys(
        ("fpga", "board", "hardware", "hw"),
        "a board is reached by pynq, xdma, xrt or litex, with addresses in a --cluster file",
    ),
    **dict.fromkeys(
        ("rtl", "verilog", "simulator", "verilator", "simulation"),
        "simulated devices are --backend sim",
    ),
}
"""Advice on backends, by the names that they have elsewhere."""


def meant_command(word: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a command that there is not, or an empty string."""
    known = COMMANDS.get(word.lower())
    return f"; did you mean {known!r}?" if known else nearest(word, names)


class Command(click.Command):
    """A command whose errors say which option is meant, and how its network is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        options = {name for param in self.params for name in param.opts}
        arguments = any(isinstance(param, click.Argument) for param in self.params)
        names_network = "--network" in options and not arguments
        ctx.allow_extra_args = names_network
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if meant := OPTIONS.get(error.option_name):
                vars(error)["possibilities"] = [meant] if meant in options else []
            raise
        if names_network and ctx.args:
            ctx.fail(f"{ctx.info_name} takes its network as an option: --network {ctx.args[0]}")
        return rest

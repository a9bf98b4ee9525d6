"""The options of ``build`` that say how the programs train."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import click

import fpgapipe
from fpgapipe.errors import UserError
from fpgapipe.host.cli.options import ranges

Decay = Literal["all", "weights"]


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``build`` the options of its programs; use it below ``@command``.

    The function gets the :class:`~fpgapipe.lowering.units.step_options.StepOptions` that they
    select as its argument ``options``.
    """

    @functools.wraps(function)
    def run(
        *args: Any, mode: str, decay: Decay | None, no_decay: tuple[str, ...], **given: Any
    ) -> Any:
        chosen = chosen_loss(
            given.pop("loss"),
            given.pop("label_smoothing"),
            ignores=given.pop("ignore_labels"),
            classes=given.pop("class_weights"),
            mode=mode,
            kinds=given.pop("output_loss"),
            weights=given.pop("loss_weight"),
        )
        optimiser = given.pop("optimiser")
        names = ("beta1", "beta2", "epsilon", "clip_norm")
        beta1, beta2, epsilon, clip_norm = (given.pop(name) for name in names)
        options = chosen_options(optimiser, beta1, beta2, epsilon, clip_norm, mode, chosen)
        if mode == "infer" and (decay or no_decay):
            raise click.UsageError("inference has no weight decay; leave its options out")
        default: Decay = "weights" if optimiser == "adamw" else "all"
        if mode == "train":
            options = replace(options, decays=decay or default, undecayed=no_decay)
        return function(*args, options=options, **given)

    for option in (
        click.option(
            "--no-decay",
            multiple=True,
            metavar="PATTERN",
            help="Parameters, such as 'layer1.*', to which no weight decay applies; repeatable.",
        ),
        click.option(
            "--decay",
            type=click.Choice(["all", "weights"]),
            help="What the weight decay applies to: all parameters, or weights alone, without "
            "biases, normalisations and embeddings [default: weights with adamw, else all].",
        ),
        click.option(
            "--ignore-labels",
            is_flag=True,
            help="Ignore labels below 0; the loss is the mean over the others of a mini-batch.",
        ),
        click.option(
            "--class-weights",
            metavar="NUMBER,...",
            default="",
            help="Factor with which labels of each class count, in the order of the classes, as "
            "'weight' of PyTorch's CrossEntropyLoss [default: 1].",
        ),
        click.option(
            "--label-smoothing",
            type=ranges.SMOOTHING,
            default=0,
            help="Share of a label that all classes have in equal parts.",
        ),
        click.option(
            "--loss-weight",
            multiple=True,
            metavar="OUTPUT=NUMBER",
            help="Factor with which the loss of an output counts, such as 'aux=0.3'; repeatable "
            "[default: 1].",
        ),
        click.option(
            "--output-loss",
            multiple=True,
            metavar="OUTPUT=LOSS",
            help="Loss of an output that has another one than --loss; repeatable. 'fpgapipe "
            "inspect' names the outputs.",
        ),
        click.option(
            "--loss",
            type=click.Choice(["cross-entropy", "mse", "bce"]),
            default="cross-entropy",
            help="What the network is trained for: classes by softmax with cross-entropy, or "
            "targets by the mean squared error or by binary cross-entropy from logits.",
        ),
        click.option(
            "--clip-norm",
            type=ranges.NORM,
            help="Scale all gradients down together where their norm is larger than this.",
        ),
        click.option(
            "--epsilon",
            type=ranges.EPSILON,
            help="Number that Adam adds to the root of the second moment [default: 1e-8].",
        ),
        click.option(
            "--beta2",
            type=ranges.BETA,
            help="Share of its last value that Adam's second moment keeps [default: 0.999].",
        ),
        click.option(
            "--beta1",
            type=ranges.BETA,
            help="Share of its last value that Adam's first moment keeps [default: 0.9].",
        ),
        click.option(
            "--optimiser",
            type=click.Choice(["sgd", "adam", "adamw"]),
            default="sgd",
            help="What updates the weights: SGD with momentum, Adam, or AdamW.",
        ),
    ):
        run = option(run)
    return run


def chosen_options(
    optimiser: str,
    beta1: float | None,
    beta2: float | None,
    epsilon: float | None,
    clip_norm: float | None,
    mode: str,
    loss: fpgapipe.Loss | None = None,
) -> fpgapipe.StepOptions:
    """The options of programs that a command line selects.

    Raises
    ------
    UserError
        If it has options that do not go together.
    """
    numbers = {"--beta1": beta1, "--beta2": beta2, "--epsilon": epsilon}
    given = [name for name, value in numbers.items() if value is not None]
    if mode == "infer" and (given or optimiser != "sgd" or clip_norm is not None):
        raise UserError("inference has no optimiser: leave its options out, or take --mode train")
    if given and optimiser == "sgd":
        raise UserError(f"{given[0]} is a number of Adam: take --optimiser adam or adamw")
    if mode == "infer":
        return fpgapipe.StepOptions(train=False)
    default = fpgapipe.StepOptions()
    return fpgapipe.StepOptions(
        loss=loss or default.loss,
        optimiser=optimiser,  # type: ignore[arg-type]
        betas=(
            default.betas[0] if beta1 is None else beta1,
            default.betas[1] if beta2 is None else beta2,
        ),
        epsilon=default.epsilon if epsilon is None else epsilon,
        clip_norm=clip_norm,
    )


def chosen_loss(
    kind: str,
    smoothing: float,
    *,
    ignores: bool,
    mode: str,
    kinds: Sequence[str] = (),
    weights: Sequence[str] = (),
    classes: str = "",
) -> fpgapipe.Loss:
    """The loss that a command line selects, with those of outputs that have one of their own.

    Raises
    ------
    UserError
        If it has options that do not go together.
    """
    own = _by_output("--output-loss", kinds)
    factors = {
        name: _number(f"the weight of the loss of {name!r}", text)
        for name, text in _by_output("--loss-weight", weights)
    }
    each_class = tuple(
        _number("the weight of a class", text) for text in (classes.split(",") if classes else ())
    )
    has_classes = "cross-entropy" in (kind, *dict(own).values())

    def loss_of(kind: str, weight: float) -> fpgapipe.Loss:
        labels = kind == "cross-entropy" or not has_classes
        return fpgapipe.Loss(
            kind,  # type: ignore[arg-type]
            float(smoothing) if labels else 0.0,
            ignores and labels,
            weight,
            class_weights=each_class if labels else (),
        )

    try:
        others = {name: loss_of(each, factors.get(name, 1.0)) for name, each in own}
        others |= {
            name: loss_of(kind, weight) for name, weight in factors.items() if name not in others
        }
        found = replace(loss_of(kind, 1.0), others=tuple(others.items()))
    except ValueError as error:
        raise UserError(str(error)) from None
    if mode == "infer" and found != fpgapipe.Loss():
        raise UserError("inference has no loss: leave its options out, or take --mode train")
    return found


def _by_output(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Split texts of the form ``OUTPUT=VALUE``; each output may occur once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise UserError(f"{option} must be an output, '=' and a value, not {text!r}")
        if name in found:
            raise UserError(f"{option} names output {name!r} twice")
        found[name] = value
    return list(found.items())


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{what} must be a number, not {text!r}") from None

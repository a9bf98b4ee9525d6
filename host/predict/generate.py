"""Continues a prompt token by token: ``fpgapipe generate``."""

from __future__ import annotations

import math
import operator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.files import write_output
from fpgapipe.host.build.build import holding
from fpgapipe.host.data.data_tokens import codes_of, is_text, text_of
from fpgapipe.host.data.samples import Wanted
from fpgapipe.host.predict.causality import check_causal
from fpgapipe.host.predict.generated import Generated
from fpgapipe.host.predict.opening import build_of, open_weights
from fpgapipe.host.predict.single_device import ON_ONE_DEVICE
from fpgapipe.host.terminal.outputs import output_of
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.lowering.units.step_options import scalar_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import StepRunner
    from fpgapipe.host.build.build import Build

SUFFIXES = (".txt", ".json")

MOST_TOKENS = 1 << 20
"""Most tokens that are chosen."""


def generate(
    folder: Path | str,
    prompt: str | Sequence[int],
    count: int,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    backend: str = "model",
    step: int | None = None,
    output: Path | str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
) -> Generated:
    """Continue a prompt by a network that predicts the token behind each.

    Parameters
    ----------
    folder : path
        A build that was trained, the folder of one of its runs, or a build for inference.
    prompt : str or sequence of int
        A text, for a network that was trained with one, or tokens.
    count : int
        Tokens that are chosen.
    temperature : float, optional
        Divides the logits before a token is drawn. Without it and `top_k`, the likeliest token is
        chosen, and of equally likely ones the first.
    top_k : int, optional
        Tokens that are drawn from at each position, the likeliest.
    seed : int, optional
        Seed of what is drawn; 0 if it is not given.
    backend : str
        What computes: ``model`` or ``sim``, for a training on one device of the build.
    step : int, optional
        Mini-batches of the training's checkpoint; the newest one if it is not given.
    output : path, optional
        File to write: ``.txt`` or ``.json``.
    threads : int, optional
        Threads for the simulation.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If there is no such build, run or checkpoint, the network does not predict the token behind
        each or depends on later ones, the prompt does not fit it, an argument is out of its range,
        or a file cannot be written.
    """
    if backend not in ON_ONE_DEVICE:
        raise UserError(f"text is generated in {' and '.join(ON_ONE_DEVICE)}, not {backend}")
    if not 1 <= count <= MOST_TOKENS:
        raise UserError(f"tokens to choose must be 1..{MOST_TOKENS:,}, not {count}")
    if temperature is not None and not 0 < temperature < math.inf:
        raise UserError(f"the temperature must be above 0 and finite, not {temperature}")
    if top_k is not None and top_k < 1:
        raise UserError(f"top-k must be at least 1, not {top_k}")
    draws = temperature is not None or top_k is not None
    if seed is not None and not draws:
        raise UserError("a seed is for tokens that are drawn: give a temperature or top-k")
    if draws:
        temperature, seed = 1.0 if temperature is None else temperature, seed or 0
        if seed < 0:
            raise UserError(f"the seed must be at least 0, not {seed}")
    path = output_of(output, SUFFIXES, "a continuation is")
    folder = Path(folder)
    with holding(build_of(folder)), ExitStack() as opened:
        source = open_weights(folder, backend, step=step, threads=threads)
        length, num_tokens = _sizes(source.build)
        name = source.build.graph.name
        given = _tokens(prompt, source.data, name, num_tokens)
        if top_k is not None and top_k > num_tokens:
            raise UserError(f"top-k must be 1..{num_tokens}, the tokens of {name}, not {top_k}")
        runner = opened.enter_context(source.make())
        # The last position sees all tokens, so the one before it is the last to be checked.
        first = max(min(len(given), length - 1) - 1, 0)
        positions = range(first, min(len(given) + count, length) - 1)
        row = _row(given, length)
        check_causal(runner.graph, runner.parameters(), row, num_tokens, positions)
        rng = np.random.default_rng(seed)
        rows: list[dict[str, Any]] = []
        cycles = None
        shows_text = isinstance(prompt, str) if source.data is None else is_text(source.data)
        with progress() as display:
            display.add_task("generating", total=count, unit="tokens")
            tokens = list(given)
            for done in range(1, count + 1):
                logits, took = _logits(runner, tokens, length)
                if not np.isfinite(logits).all():
                    raise UserError(f"{name} gives logits that are not finite, so nothing follows")
                token = drawn(logits, temperature, top_k, rng)
                character = text_of([token]) if shows_text else None
                share = float(_shares(logits)[token])
                rows.append({"token": token, "character": character, "probability": share})
                tokens.append(token)
                cycles = None if took is None else (cycles or 0) + took
                display.update(completed=done)
    found = Generated(
        name, source.weights, backend, length, tuple(given), tuple(rows), shows_text,
        temperature, top_k, seed, cycles,
    )  # fmt: skip
    if path is not None:
        write_output(path, found.text_for(path))
    return found


def drawn(
    logits: NDArray[np.float64],
    temperature: float | None,
    top_k: int | None,
    rng: np.random.Generator,
) -> int:
    """Choose a token: the likeliest without a temperature, else a random one by its probability.

    Parameters
    ----------
    logits : float64 array, shape (tokens,)
    temperature : float or None
    top_k : int or None
        How many tokens there are to draw from, the likeliest; of equal ones the first.
    rng : Generator
    """
    if temperature is None:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[:top_k]
    sums = np.cumsum(_shares(logits[order] / temperature))
    place = np.searchsorted(sums, rng.random() * sums[-1], side="right")
    return int(order[min(int(place), len(order) - 1)])


def _shares(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of logits."""
    exponents = np.exp(logits - logits.max())
    shares: NDArray[np.float64] = exponents / exponents.sum()
    return shares


def _sizes(build: Build) -> tuple[int, int]:
    """Positions of a network that predicts the token behind each, and how many tokens there are.

    Raises
    ------
    UserError
        If it is none.
    """
    graph = build.graph.evaluated
    loss = build.options.loss
    wanted = Wanted.of(build.graph, loss)
    if wanted.indices is None or wanted.several or len(wanted.shape) != 1:
        inputs = ", ".join(f"{each.name} {list(each.shape)}" for each in wanted.inputs)
        raise UserError(
            f"{graph.name} reads no single row of tokens, so it continues none; its input is "
            f"{inputs}"
        )
    if graph.outputs[0] != build.graph.outputs[0] or not wanted.predicts_tokens:
        raise UserError(
            f"{graph.name} does not give a distribution over its {wanted.indices} tokens for each "
            f"of {wanted.shape[0]} positions, so it continues no row of them"
        )
    return wanted.shape[0], wanted.indices


def _tokens(
    prompt: str | Sequence[int], data: str | None, network: str, num_tokens: int
) -> list[int]:
    """The tokens of a prompt.

    Raises
    ------
    UserError
        If it has none, some are not the network's, or it is a text and the data were none.
    """
    if isinstance(prompt, str):
        if data is not None and not is_text(data):
            raise UserError(
                f"{network} was trained with {data}, whose tokens are no characters: give the "
                "prompt as tokens"
            )
        found: list[int] = codes_of(prompt).tolist()
    else:
        found = list(map(operator.index, prompt))
    if not found:
        raise UserError("the prompt must have at least one token")
    for number, token in enumerate(found):
        if not 0 <= token < num_tokens:
            what = f"{prompt[number]!r} is {token}" if isinstance(prompt, str) else f"it is {token}"
            raise UserError(
                f"token {number + 1} of the prompt must be 0..{num_tokens - 1}, the tokens of "
                f"{network}, but {what}"
            )
    return found


def _row(tokens: Sequence[int], length: int) -> NDArray[np.int64]:
    """The last tokens, as many as the network reads; fewer are filled up with the last one."""
    last = tokens[-length:]
    return np.array([*last, *[last[-1]] * (length - len(last))], np.int64)


def _logits(
    runner: StepRunner, tokens: Sequence[int], length: int
) -> tuple[NDArray[np.float64], int | None]:
    """Logits behind the last token, and the cycles of the pass."""
    graph = runner.graph
    assert graph.batch is not None
    # The mini-batch has the same row for each of its samples.
    rows: NDArray[Any] = np.tile(_row(tokens, length), (graph.batch * runner.num_microbatches, 1))
    results, cycles = runner.infer({next(iter(graph.inputs)): rows}, scalar_bits())
    found = results[graph.outputs[0]][0, min(len(tokens), length) - 1]
    return found.astype(np.float64), cycles

"""Reads samples of tokens: the characters of a text, or a long row of numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.files import read_text
from fpgapipe.host.data.samples import TRAINING_PART, Dataset, Samples, Wanted, shape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from fpgapipe.host.data.rows import Rows

MAX_BYTES = 1 << 28
"""Most bytes of a text; a larger one is not opened."""


def read_characters(path: Path, wanted: Wanted) -> Dataset:
    """Read a text, whose characters are tokens; see `fpgapipe.host.data.data.load_data`.

    Raises
    ------
    FileError
        If the file is no text in UTF-8, is too short, or has characters that are no tokens of the
        network; or the network does not predict tokens.
    """
    check_predicts(path, wanted)
    assert wanted.indices is not None, "a network that predicts tokens has them as input"
    text = read_text(path, MAX_BYTES)
    codes = codes_of(text)
    beyond = np.flatnonzero(codes >= wanted.indices)
    if len(beyond):
        at = int(beyond[0])
        line = text.count("\n", 0, at) + 1
        raise FileError(
            path,
            [
                f"line {line}: a character's number in Unicode is its token, which must be in "
                f"0..{wanted.indices - 1} for {wanted.network}, but {text[at]!r} is {codes[at]}; "
                "replace it, or take a network with a larger table"
            ],
        )

    def cut(first: int, count: int) -> NDArray[np.int64]:
        found = codes[first : first + count * wanted.shape[0]]
        return np.ascontiguousarray(found).reshape(count, -1)

    return following(path, "characters", len(codes), cut, wanted)


def codes_of(text: str) -> NDArray[np.int64]:
    """The tokens of a text: the number of each character in Unicode."""
    # Bytes of a command line that are no UTF-8 are lone surrogates, which are numbers as well.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


def text_of(tokens: Iterable[int]) -> str:
    """The text of tokens; a token that is no character gives U+FFFD."""
    return "".join(
        chr(code) if code < 0xD800 or 0xDFFF < code <= sys.maxunicode else "\ufffd"
        for code in tokens
    )


def is_text(data: str) -> bool:
    """Whether data of this name are a text, whose tokens are characters."""
    return Path(data).suffix.lower() == ".txt"


def check_predicts(path: Path, wanted: Wanted) -> None:
    """Refuse a network that does not predict a token behind each token.

    Raises
    ------
    FileError
        If it does not.
    """
    if not wanted.predicts_tokens:
        raise FileError(
            path,
            [
                f"a row of tokens is for a network that predicts the token behind each of its "
                f"input, which {wanted.network} does not; use a .npz file with labels"
            ],
        )


def following(
    path: Path,
    what: str,
    num_tokens: int,
    cut: Callable[[int, int], NDArray[Any] | Rows],
    wanted: Wanted,
) -> Dataset:
    """Cut a long row of tokens into samples; a label is the token behind.

    The last fifth of the samples is for validation.

    Parameters
    ----------
    path : Path
    what : str
        What the tokens are, for errors.
    num_tokens : int
    cut : callable
        Function that gives so many samples that begin at a token.
    wanted : Wanted
        Samples of a network that predicts tokens.

    Raises
    ------
    FileError
        If there are not enough tokens for two samples.
    """
    (length,) = wanted.shape
    count = (num_tokens - 1) // length
    if count < 2:
        raise FileError(
            path,
            [
                f"must have at least {2 * length + 1} {what}, for two samples of "
                f"{shape_text(wanted.shape)} and the token behind, not {num_tokens}"
            ],
        )
    samples = Samples(cut(0, count), cut(1, count))
    held_out = max(round(count * (1 - TRAINING_PART)), 1)
    return Dataset(
        samples.some(slice(count - held_out)),
        samples.some(slice(count - held_out, None)),
        f"the last {held_out:,} of {count:,} samples are for validation",
    )

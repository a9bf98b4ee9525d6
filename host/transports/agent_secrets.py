"""The files that device agents and their clients trust: token, certificates and key."""

from __future__ import annotations

import os
import secrets
import ssl
import stat
from typing import TYPE_CHECKING

from fpgapipe.errors import FileError, UserError
from fpgapipe.files import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "FPGAPIPE_AGENT_TOKEN"
"""Environment variable that has the token where no file is named."""

SHORTEST, LONGEST = 16, 256
"""Fewest and most characters of a token."""

_MOST_BYTES = 1 << 16
"""Most bytes of a file."""


def new_token(path: Path) -> None:
    """Write a random token to a new file, which only its owner can read.

    Raises
    ------
    UserError
        If the file exists or cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    with open(file, "w") as text:  # noqa: PTH123 (an open file)
        text.write(secrets.token_urlsafe(32) + "\n")


def token_from(path: Path | None) -> str:
    """Read the token from a file that only its owner can read, or from `VARIABLE`.

    Raises
    ------
    UserError
        If there is none, others can read the file, or it is no token.
    """
    if path is not None:
        text, source = _own(path).decode(errors="replace"), str(path)
    elif VARIABLE in os.environ:
        text, source = os.environ[VARIABLE], VARIABLE
    else:
        raise UserError(
            f"there is no token: name its file (token_file), or set {VARIABLE}; 'fpgapipe agent "
            "--new-token FILE' writes one"
        )
    token = text.strip()
    if not (SHORTEST <= len(token) <= LONGEST and token.isascii() and token.isprintable()):
        raise UserError(
            f"{source} must have a token of {SHORTEST}..{LONGEST} printable ASCII characters"
        )
    return token


def authorization(token: str) -> str:
    """Value of ``authorization`` in a client's metadata for a token."""
    return f"Bearer {token}"


def certificates(path: Path) -> str:
    """Read certificates that a client trusts, in PEM.

    Raises
    ------
    FileError
        If the file cannot be read, or has no certificate.
    """
    text = read_bytes(path, _MOST_BYTES).decode(errors="replace")
    trusting(path, text)
    return text


def trusting(path: Path, text: str) -> ssl.SSLContext:
    """Return TLS for a client that trusts certificates in PEM alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise FileError(path, ["must be certificates in PEM"]) from None
    return context


def own_certificate(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Read an agent's certificate and its key, in PEM.

    Raises
    ------
    UserError
        If a file cannot be read, others can read the key, or the two do not belong together.
    """
    found = read_bytes(certificate, _MOST_BYTES), _own(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UserError(
            f"{certificate} and {key} are no certificate and its key without a password, in PEM "
            f"({error})"
        ) from None
    return found


def _own(path: Path) -> bytes:
    """Read a file with a secret."""
    data = read_bytes(path, _MOST_BYTES)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FileError(path, [f"others can read this secret; 'chmod 600 {path}' ends that"])
    return data

"""Compiles libraries of C++ and keeps them in the cache, under the digest of all their inputs."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpgapipe.cache import building, is_whole, key_of, lock, prune, store
from fpgapipe.errors import ToolError
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)


def cached_library(
    cache: Path,
    name: str,
    what: str,
    sources: Mapping[str, str],
    ingredients: Mapping[str, Any],
    compile_: Callable[[Path, Path], None],
) -> Path:
    """Return a library from the cache; compile it first if it is not there.

    Any number of processes may ask for it at the same time, and one of them compiles it.

    Parameters
    ----------
    cache : Path
        Folder of the cache (`fpgapipe.cache.cache_dir`).
    name : str
        File name of the library.
    what : str
        What is compiled, in messages.
    sources : mapping of str to str
        Texts of the source files by name, the most important first. They are written to the folder
        in which the library is compiled.
    ingredients : mapping
        All inputs in which two libraries may differ.
    compile_ : callable
        Function that compiles the library, given the folder and the log.
    """
    key = key_of(ingredients)
    entry = cache / "simulators" / key
    if is_whole(entry):
        return entry / name
    with lock(cache / "locks" / key):
        # Another process may have built it while this one waited for the lock.
        if is_whole(entry):
            return entry / name
        if entry.exists():
            logger.warning("the cache entry %s is damaged and is made again", entry)
        log = cache / "logs" / f"{key}.log"
        log.unlink(missing_ok=True)
        with building(cache) as folder:
            for source, text in sources.items():
                (folder / source).write_text(text)
            try:
                with phase(f"compilation of {what}"):
                    compile_(folder, log)
            except ToolError:
                first = folder / next(iter(sources))
                kept = shutil.copy(first, log.with_suffix(first.suffix))
                with log.open("a") as file:
                    file.write(f"{first.name} is kept as {kept}\n")
                raise
            store([folder / name], entry, ingredients)
        prune(cache, spared=entry)
    return entry / name

"""How often Python looks for garbage while millions of objects are made that stay."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage seldom.

    Else a third of the time goes there; with none at all, much more memory may be needed.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)

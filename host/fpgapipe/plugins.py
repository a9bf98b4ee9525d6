"""What other installed packages add to fpgapipe; they offer it by entry points.

Nothing is imported before it is asked for by its name, and names alone need no import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fpgapipe.errors import UserError, nearest, shown

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by their names: those of fpgapipe, and those of other packages.

    Parameters
    ----------
    group : str
        Group of the entry points of other packages. The name of an entry point is that of the
        thing, and its value says where Python finds it, ``module`` or ``module:object``.
    what : str
        What one thing is, in messages.
    own : mapping of str
        The things of fpgapipe, in the order of lists. A text is the place of one that is imported
        when it is asked for, written as the value of an entry point.
    read : callable
        Returns the thing that an entry point offers, given the entry point and what Python finds
        there. It raises `TypeError` if that is another kind of thing; the message is a sentence
        without a subject.

    Attributes
    ----------
    group, what, own
        As given.
    """

    def __init__(
        self,
        group: str,
        what: str,
        own: Mapping[str, T | str],
        read: Callable[[EntryPoint, Any], T],
    ) -> None:
        self.group, self.what = group, what
        self.own, self._read = own, read

    def names(self) -> list[str]:
        """All names: those of fpgapipe, then the others in the order of the alphabet."""
        return [*self.own, *sorted(set(self._offered) - set(self.own))]

    def __contains__(self, name: object) -> bool:
        """Whether there is a thing of this name."""
        return name in self.own or name in self._offered

    def __getitem__(self, name: str) -> T:
        """Return a thing by its name.

        Raises
        ------
        UserError
            If there is none, several packages offer it, or the one that does is broken.
        """
        offers = self._offered.get(name, ())
        if name in self.own:
            for entry in offers:
                raise UserError(
                    f"{offer(entry)}, and fpgapipe has a {self.what} of that name; rename the "
                    f"entry point, or uninstall {giver(entry)}"
                )
            own = self.own[name]
            if isinstance(own, str):
                entry = EntryPoint(name, own, self.group)
                return self._read(entry, entry.load())
            return own
        if not offers:
            known = self.names()
            hint = nearest(name, known) or f"; the {self.what}s are {', '.join(known)}"
            raise UserError(f"there is no {self.what} named {shown(name)}{hint}")
        if len({entry.value for entry in offers}) > 1:
            givers = " and ".join(giver(entry) for entry in offers)
            raise UserError(
                f"the {self.what} {name!r} is offered by {givers}; uninstall all but one of them"
            )
        found = loaded(offers[0])
        try:
            return self._read(offers[0], found)
        except TypeError as error:
            raise UserError(
                f"{offer(offers[0])}, which {error}; mend {giver(offers[0])}, or uninstall it"
            ) from None

    @property
    def _offered(self) -> dict[str, tuple[EntryPoint, ...]]:
        return offered(self.group)


def offered(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by their names."""
    return _offered(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _offered(group: str, places: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """The same; packages are looked for once for a group and the folders of ``sys.path``."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def load_all(group: str) -> None:
    """Import the modules of a group, which register what they have themselves.

    Raises
    ------
    UserError
        If one cannot be imported, or registers a name that is taken.
    """
    for entries in offered(group).values():
        for entry in entries:
            loaded(entry)


def loaded(entry: EntryPoint) -> Any:
    """Return what an entry point of another package stands for.

    Raises
    ------
    UserError
        If it cannot be imported.
    """
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        # Importing a module runs its own code, which can raise any exception.
        raise UserError(
            f"{offer(entry)}, which cannot be imported: {type(error).__name__}: "
            f"{shown(str(error), 200)}; mend {giver(entry)}, or uninstall it"
        ) from error


def giver(entry: EntryPoint) -> str:
    """The package that an entry point is of, for messages."""
    return f"the package {entry.dist.name}" if entry.dist else "the package"


def offer(entry: EntryPoint) -> str:
    """The beginning of a message about an entry point: a package and what it offers."""
    return f"{giver(entry)} offers '{entry.name} = {entry.value}' in {entry.group}"


def instance_of(kind: type[T]) -> Callable[[EntryPoint, Any], T]:
    """Return a `read` of `Registry` for objects of a class."""

    def read(entry: EntryPoint, found: Any) -> T:
        if not isinstance(found, kind):
            raise TypeError(f"is {_described(found)}, not a {kind.__name__}")
        return found

    return read


def subclass_of(kind: type[T]) -> Callable[[EntryPoint, Any], type[T]]:
    """Return a `read` of `Registry` for classes that are made from another one."""

    def read(entry: EntryPoint, found: Any) -> type[T]:
        if not (isinstance(found, type) and issubclass(found, kind)):
            raise TypeError(f"is {_described(found)}, not a subclass of {kind.__name__}")
        return found

    return read


def _described(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__

"""Memory of a device that is given out from its beginning to its end."""

from fpgapipe.host.driver.transport import TransportError

PAGE_BYTES = 4096
"""Memory begins at multiples of it, as bursts must not cross them."""


class Allocation:
    """Gives out a region of memory, piece after piece; nothing is given back.

    Parameters
    ----------
    begin, end : int
        First byte of the region and first byte after it, addresses on the core's bus.
    """

    def __init__(self, begin: int, end: int) -> None:
        self._next, self._end = -(-begin // PAGE_BYTES) * PAGE_BYTES, end

    def take(self, size_bytes: int) -> int:
        """Return the address of the next piece.

        Raises
        ------
        TransportError
            If the region has not as much left.
        """
        at, end = self._next, self._next + size_bytes
        if end > self._end:
            raise TransportError(
                f"the device has {max(self._end - at, 0):,} bytes of memory left, and "
                f"{size_bytes:,} are needed"
            )
        self._next = -(-end // PAGE_BYTES) * PAGE_BYTES
        return at

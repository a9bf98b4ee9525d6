"""How a device agent treats callers without its token: late answers, and few lines of log."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass

SPACING_S = 0.1
"""Seconds between the answers to two refused calls of a peer."""

LONGEST_DELAY_S = 1.0
"""Most seconds that a refused call waits for its answer."""

LOG_SPACING_S = 1.0
"""Seconds between two log lines about a peer."""

MOST_PEERS = 1024
"""Most peers that are remembered; the one that was refused longest ago is forgotten first."""

MOST_WAITING = 512
"""Most refused calls that wait for their answers; a further one is answered at once, since each
takes memory."""

logger = logging.getLogger(__name__)


@dataclass
class _Peer:
    """A peer that was refused.

    Attributes
    ----------
    next_s, log_s : float
        When its next refused call may be answered, and when it may be logged again.
    num_unlogged : int
        Refused calls since it was logged.
    """

    next_s: float = 0.0
    log_s: float = 0.0
    num_unlogged: int = 0


class Strangers:
    """Peers whose calls were refused, used by one thread; a peer is all that a host can be."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._num_waiting = 0

    async def refused(self, address: str) -> None:
        """Log a refused call, and wait until it is to be answered.

        The first call of a peer is answered at once, as a mistyped token is no attack.

        Parameters
        ----------
        address : str
            Address and port of the client.
        """
        now = time.monotonic()
        peer = self._peers.setdefault(name := _host(address), _Peer())
        self._peers.move_to_end(name)
        if len(self._peers) > MOST_PEERS:
            self._peers.popitem(last=False)
        peer.num_unlogged += 1
        if now >= peer.log_s:
            count = peer.num_unlogged
            times = "" if count == 1 else f" (and {count - 1:,} calls before)"
            logger.warning("refused %s, which has no right token%s", address, times)
            peer.log_s, peer.num_unlogged = now + LOG_SPACING_S, 0
        answer_s = min(max(now, peer.next_s), now + LONGEST_DELAY_S)
        peer.next_s = answer_s + SPACING_S
        if answer_s > now and self._num_waiting < MOST_WAITING:
            self._num_waiting += 1
            try:
                await asyncio.sleep(answer_s - now)
            finally:
                self._num_waiting -= 1


def _host(address: str) -> str:
    """The host of an address; of IPv6, the network of 64 bits, of which one host has all."""
    text = address.rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))

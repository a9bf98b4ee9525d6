"""Two memory ports of a core, among which blocks of addresses are shared.

A channel of HBM gives two thirds of what the bus of a core takes. A core with two ports has half of
all blocks of `BLOCK_BYTES` behind each. Programs, tensors and simulated memories do not know of it:
addresses are those of one memory.

The port of a block is the parity of `PORT_BITS` of its address. Of blocks which follow one another,
at most two are at the same port, and rows lie at both ports however far they are apart. (The lowest
bit alone would have all rows of 2 KiB at one port.) The channels of a board lie one behind the
other. In front of them the lowest of these bits is left out, and the port is the highest bit that
numbers a byte (`port_address`).
"""

from collections.abc import Iterator

BLOCK_BYTES = 1024
"""Bytes that follow one another behind a port; the longest burst of a core with two ports."""

MEMORY_PORTS = (1, 2)
"""Numbers of memory ports that a core can have."""

BUFFERED_WORDS = 128
"""Words that wait at a port in each direction.

While a block moves at one port, the other one is read ahead, or goes on writing. A block of 16
words at a port that moves 0.7 words a cycle needs five places. So many lie in block RAMs, of which
a core has more to spare than of LUTs.
"""

WORD_CYCLES = 2
"""Cycles by which two ports delay the words that are read, and those that are written."""

BLOCK_BITS = BLOCK_BYTES.bit_length() - 1
"""Bits of an address that number a byte of a block."""

PORT_BITS = (BLOCK_BITS, 12, 13, 15, 17, 20, 21)
"""Bits of an address whose parity is the number of its port.

Of all sets of bits below 24 these leave 16 rows least uneven, on average and in the worst case: of
100 distances from 1 KiB to 1 MiB, with eight first addresses each, 58 % of the rows are at one port
on average, and 70 % at the worst distance.
"""

_PORT_MASK = sum(1 << bit for bit in PORT_BITS)


def port_of(address: int) -> int:
    """Port behind which an address lies: 0 or 1."""
    return (address & _PORT_MASK).bit_count() & 1


def port_address(address: int, half_bytes: int) -> int:
    """Where an address lies in the channels behind the two ports, which follow one another.

    Parameters
    ----------
    address : int
        Address as the core has it: twice that of the first channel, and more.
    half_bytes : int
        Size of the channels behind each port: whole blocks.
    """
    number, low = divmod(address, BLOCK_BYTES)
    return port_of(address) * half_bytes + (number >> 1) * BLOCK_BYTES + low


def blocks(address: int, size_bytes: int) -> Iterator[tuple[int, slice]]:
    """Cut a range of addresses at the blocks; yields each part's address and its place in it."""
    done = 0
    while done < size_bytes:
        size = min(BLOCK_BYTES - (address + done) % BLOCK_BYTES, size_bytes - done)
        yield address + done, slice(done, done + size)
        done += size

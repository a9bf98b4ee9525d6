"""Building blocks of all gateware: memories, queues, bus ports and arbiters."""

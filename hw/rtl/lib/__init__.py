"""Memories, queues, bus ports: what all gateware is made of."""

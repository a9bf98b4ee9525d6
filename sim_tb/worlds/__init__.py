"""Environments of blocks in their testbenches: memories, peers, wires."""

"""Operators of a network as instructions of the core."""

"""Exact searches over the cuts of a network."""

"""Cycle models of the blocks of a core."""

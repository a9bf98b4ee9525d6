"""Bit-exact models of the blocks of a core."""

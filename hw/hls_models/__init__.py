"""Specifications, bit-exact models, cycles and resources of all blocks."""

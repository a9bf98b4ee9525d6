"""Operators of a network as kernels: stretches of a core's program."""

"""Kernels: sections of a core's program that operators of a network are lowered to."""

"""Kernels of the vector engine, cut into tiles that fit the scratchpad."""

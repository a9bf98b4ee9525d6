"""Kernels of the vector engine, divided into tiles that fit the scratchpad."""

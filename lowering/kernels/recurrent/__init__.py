"""Kernels of recurrent layers: the steps of their cells."""

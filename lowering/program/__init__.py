"""Kernels put together to the programs of devices."""

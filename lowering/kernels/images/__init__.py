"""Kernels of images: fixed maps of axes, and volumes."""

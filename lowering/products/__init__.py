"""Convolutions and linear layers as tiled matrix products."""

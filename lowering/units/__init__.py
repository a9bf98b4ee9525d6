"""Layers that run together, and what their passes do."""

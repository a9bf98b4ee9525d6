"""Backends that run a network: one interface, and modules for the simulator, model and PyTorch."""

"""Testbenches of cocotb, one a block."""

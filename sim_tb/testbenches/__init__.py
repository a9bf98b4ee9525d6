"""Testbenches for cocotb, one per block."""

"""Drivers for cocotb testbenches, and functions that run them."""

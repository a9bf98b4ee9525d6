"""Drivers of cocotb testbenches, and what runs them."""

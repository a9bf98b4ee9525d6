"""Simulators, testbenches, drivers and proofs for gateware."""

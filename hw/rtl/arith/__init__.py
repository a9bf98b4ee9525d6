"""Arithmetic as gateware."""

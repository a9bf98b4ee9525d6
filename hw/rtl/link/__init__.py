"""Gateware of one end of a link."""

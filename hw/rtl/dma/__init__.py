"""Gateware of the scratchpad and of the engines that move data."""

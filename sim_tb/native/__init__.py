"""Gateware simulated at full speed, in C++."""

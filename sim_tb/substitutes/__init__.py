"""Blocks of gateware that the native simulator runs as C++, exact to the bit and to the cycle."""

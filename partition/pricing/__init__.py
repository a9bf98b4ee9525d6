"""Prices of a plan on the machine that is built: programs, timed by the cycle model."""

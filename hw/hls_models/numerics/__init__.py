"""Number formats and arithmetic, bit for bit as the hardware computes them."""

"""Units: layers that run together, and the kernels of their passes."""

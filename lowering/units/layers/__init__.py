"""Units of the operators: which layers run together, and the kernels of their passes."""

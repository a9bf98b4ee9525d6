"""Products of integers in exact arithmetic: kernels, and the constants that they need."""

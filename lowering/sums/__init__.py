"""Sums over devices: transfers, all-reduce, weights of several stages, the norm of gradients."""

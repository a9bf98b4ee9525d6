"""What each block computes: specifications, bit-exact models, cycles, resources."""

"""PyTorch modules and exported programs, read as graphs."""

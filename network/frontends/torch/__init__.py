"""The frontend that reads PyTorch modules and exported programs as graphs."""

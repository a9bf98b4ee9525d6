"""Where tensors lie in the memory of a device."""

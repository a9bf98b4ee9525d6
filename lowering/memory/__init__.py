"""The places of tensors in the memory of a device."""

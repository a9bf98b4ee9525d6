"""What the blocks of a core take of a device."""

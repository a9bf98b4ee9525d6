"""Resources that the blocks of a core take on a device."""

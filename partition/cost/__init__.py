"""The cost model: what layers and cores cost on a device."""

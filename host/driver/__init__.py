"""The driver of devices: one for all ways to reach them, simulated ones included."""

"""Programs with which models travel around a ring of devices."""

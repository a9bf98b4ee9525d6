"""Training of several models that travel around a ring of devices."""

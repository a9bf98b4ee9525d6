"""Several simulated devices and the wires between them."""

"""Parameters of cores, links and devices, shared by models and gateware."""

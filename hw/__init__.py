"""The hardware: what each block computes, and its gateware."""

"""The vector engine as gateware."""

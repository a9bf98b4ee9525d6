"""The end of a link as gateware."""

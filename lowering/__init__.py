"""Lowering: from a network to the programs of cores."""

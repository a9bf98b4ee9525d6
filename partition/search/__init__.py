"""The partitioner: exact searches over the cuts of a network."""

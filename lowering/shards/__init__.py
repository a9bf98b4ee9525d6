"""Shards: parts of a network's layers on several devices, and what these exchange."""

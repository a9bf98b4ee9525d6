"""Exploration: ways to train a network on a cluster are timed and compared."""

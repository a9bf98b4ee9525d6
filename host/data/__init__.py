"""Samples to train with."""

"""Samples for training and validation."""

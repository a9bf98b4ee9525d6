"""Predictions of a trained network for samples."""

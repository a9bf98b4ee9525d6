"""Predictions and measurements of the time of a mini-batch."""

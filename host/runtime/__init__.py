"""Runs of builds: training, inference, checks, checkpoints."""

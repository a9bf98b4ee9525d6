"""Runs of builds: training, checks, checkpoints."""

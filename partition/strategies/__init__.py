"""Parallel strategies other than the plain pipeline."""

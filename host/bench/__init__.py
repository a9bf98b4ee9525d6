"""Benchmarks that commands run."""

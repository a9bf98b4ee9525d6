"""Benchmarks that ``fpgapipe bench`` runs."""

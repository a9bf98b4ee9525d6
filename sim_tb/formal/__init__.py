"""Proofs about gateware."""

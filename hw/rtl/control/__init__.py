"""Sequencer and registers as gateware."""

"""Checks of what a machine needs, and files to begin with."""

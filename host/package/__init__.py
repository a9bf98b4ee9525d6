"""Packages of a build for the vendors' tools, and C functions over XRT."""

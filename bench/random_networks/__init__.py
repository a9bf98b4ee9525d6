"""Seeded networks as data, what is checked of them, and how failing ones are made smaller."""

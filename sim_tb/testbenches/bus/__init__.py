"""Testbenches of what moves words over the memory bus."""

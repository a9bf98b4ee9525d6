"""Testbenches of what lies between links and transceivers, and of links that need none."""

"""Testbenches of what lies between links and transceivers."""

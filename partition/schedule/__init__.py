"""Kinds of schedules, how each is made, and the rules that all keep."""

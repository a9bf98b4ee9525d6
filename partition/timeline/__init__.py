"""Event simulation of schedules."""

"""The event simulation of schedules."""

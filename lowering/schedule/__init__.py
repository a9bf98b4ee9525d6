"""Schedules as data, from which programs are generated."""

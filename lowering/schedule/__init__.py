"""Schedules as data, which programs are made from."""

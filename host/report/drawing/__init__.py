"""Timetables, curves and tables drawn as text, HTML and SVG."""

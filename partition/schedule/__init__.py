"""The kinds of schedules, the functions that make them, and the rules that they must keep."""

"""The report: one page, its sections and their numbers."""

"""The terminal: tables, progress, output files and interrupts."""

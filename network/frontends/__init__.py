"""Frontends, which read the files and programs of other tools as graphs."""

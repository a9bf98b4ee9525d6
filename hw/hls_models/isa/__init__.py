"""The instructions of a core and their encoding."""

"""The sub-commands of ``fpgapipe``, one a file."""

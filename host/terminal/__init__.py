"""What people see of a command, and what they do to it."""

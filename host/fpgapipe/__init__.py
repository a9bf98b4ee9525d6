"""fpgapipe plans, generates and simulates training pipelines over several FPGAs."""

__version__ = "0.1.0"

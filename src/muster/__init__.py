"""Muster schedules work that must start together on machines that people share."""

__version__ = "0.1.0"

"""Measures: figures, campaigns of faults, and what they are checked against. Not part of the installed package."""

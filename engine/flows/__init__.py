"""Conducts: what a run would do, a run, a delivery, each from settings to result."""

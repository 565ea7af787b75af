"""Checks of what computes: canaries of a run, and of GPUs."""

"""Hydrates: which models there are, where their files lie, and their weights on a device."""

"""Pairs of a query and a text, scored by a cross-encoder."""

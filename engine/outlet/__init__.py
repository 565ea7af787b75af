"""Delivers: fusion, files, the embedded store and search over it."""

"""Delivers: fusion, files, and the embedded store."""

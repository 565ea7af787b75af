"""Delivers: files, the embedded store, and a Qdrant server."""

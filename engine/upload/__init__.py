"""Uploads: what a run delivered, as points of a Qdrant server."""

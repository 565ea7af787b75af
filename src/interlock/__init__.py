"""Embed document collections with an ensemble of models under a hard memory ceiling."""

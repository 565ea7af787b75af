"""Reads: collections, chunks and tokens, from files as they are found."""

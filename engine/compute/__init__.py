"""Computes: batches, their order, the encoder, the worker and the vectors it commits."""

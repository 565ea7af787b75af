"""Steering a run from another process: what is said over its socket, who answers there, and who asks."""

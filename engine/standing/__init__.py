"""Tells how a run stands: its state, what to do about it, when it ends, what became of it; by itself and in lists."""

"""Judges: how a run stands, when it ends, what became of it, and what to do about that; by itself and in lists."""

"""Who attends a run: a screen or lines."""

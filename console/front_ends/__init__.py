"""Who attends a run: a screen or lines; and the thread that the engine runs in."""

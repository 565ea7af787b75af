"""Where a screen looks: a run in this process, or a journal."""

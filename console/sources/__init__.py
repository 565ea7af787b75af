"""Where a screen looks: a run in a thread of this process, or a journal."""

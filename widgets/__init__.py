"""Shows: one pane of the console per file, drawn from plain state."""

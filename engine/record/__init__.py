"""Remembers: events, the journal on disk, the state folded from it, and the summary."""

"""Files: the formats of an export as a table, what writes and reads each, and a run's own exports as points."""

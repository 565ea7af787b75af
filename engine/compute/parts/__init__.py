"""What a model gives of rows, one file a kind of output: its rows in memory, its file on disk, its gate and CRC."""

"""Several machines compute one run: its head hands batches out, and nodes compute them."""

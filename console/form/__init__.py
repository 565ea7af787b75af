"""The form of a new run without its screen: what is filled in, what is wrong with it, and what this machine has."""

"""What can be on the screen: the main one, and what is laid over it."""

"""Events, questions and tables as plain text for people."""

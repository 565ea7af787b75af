"""A summary as a document: read, compared, and told in tables."""

"""Answers questions over a delivered collection: stages of search, their blends, and reranking."""

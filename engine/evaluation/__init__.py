"""Judges what an ensemble finds: models, fusions, storage, hybrid search and reranking against people's judgements."""

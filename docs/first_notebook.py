"""A first notebook: write chunks, plan, embed, read the vectors, search. Run it cell by cell, or as it stands."""

import json
from pathlib import Path

import interlock

# %% A collection is a directory of chunk files.
texts = [
    "Rotate the keys every 90 days.",
    "A red lamp means that the line is blocked.",
    "Trains to the coast leave at noon.",
]
Path("chunks/Handbook").mkdir(parents=True, exist_ok=True)
Path("chunks/Handbook/rules_chunks.json").write_text(json.dumps([{"text": text} for text in texts]))

# %% What a run would do. Models must be on this machine: `interlock models fetch KEY` fetches one.
settings = interlock.Settings(roster={"all-minilm-l6": 0.4, "all-mpnet-base-v2": 0.6}, ceiling=4 << 30, qdrant="store")
print(interlock.plan("chunks", settings))

# %% Do it. To stop, interrupt the cell; Settings(resume=True) continues.
run = interlock.embed("chunks", settings)
print(run, run.summary.seconds, "seconds")

# %% Vectors are memory-mapped, one row for each chunk.
vectors = run.vectors("Handbook", "all-mpnet-base-v2")
print(vectors.ids, vectors.array.shape, vectors.array @ vectors.array.T)

# %% Search with both models, fused.
for hit in interlock.search(run, "how often do I change the keys?", limit=2):
    print(f"{hit.cosine:.3f}", hit.payload["text"])

"""One of three nodes of `local:3` lies: its sources or its torch are others, all its rows are turned, or one in 1,000.

The node is named, and every row that is delivered is that of sentence-transformers for its text alone. The rare lie is
told with `,twice`: without, it is found by chance. The command is Interlock's own, with another class for its nodes.
"""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec.structs import replace as other

from bench.campaigns.tally import Campaign, Report, Room
from interlock.engine.compute.cluster.messages import Hello, Orders, Welcome
from interlock.engine.compute.cluster.messages import Report as Told
from interlock.engine.compute.cluster.node import ClusterNode
from interlock.engine.compute.parts.outputs import Outputs
from tests.builders import ROOT, corpus, environment, sentences, tiny_model

KINDS = ("sources", "torch", "rows", "noise", "none")
TEXTS = 2400
_CODE = """
import sys
from interlock.console.main import main
from interlock.engine.compute.cluster.ray_head import connect
from interlock.engine.flows import computing
computing.connected = lambda address, devices: connect(address, devices, "bench.campaigns.liars:" + sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


class Liar(ClusterNode):
    """A node that lies where it is the second."""

    kind = "none"

    def welcome(self, hello: Hello) -> Welcome:
        """Say the versions that it has, or others."""
        self._lies, self._rows, said = hello.node == "node-2", 0, super().welcome(hello)
        name = {"sources": "interlock's sources", "torch": "torch"}.get(self.kind)
        return replace(said, versions={**said.versions, name: "0"}) if name and self._lies else said

    def exchange(self, orders: Orders) -> Told:
        """Give what it computed, or something else."""
        told = super().exchange(orders)
        return replace(told, news=[self._changed(each) for each in told.news]) if self._lies else told

    def _changed(self, news: Any) -> Any:
        if news.outputs is None or self.kind not in ("rows", "noise"):
            return news
        dense = news.outputs.dense.copy()
        first, self._rows = self._rows, self._rows + len(dense)
        rows = [row for row in range(len(dense)) if self.kind == "rows" or (first + row) % 1000 == 7]
        dense[rows] += np.random.default_rng(first).normal(0, 0.2, (len(rows), dense.shape[1])).astype(np.float32)
        outputs = Outputs(dense / np.linalg.norm(dense, axis=1, keepdims=True))
        return replace(news, outputs=outputs, event=other(news.event, crc=outputs.crc()))


Sources, Torch, Rows, Noise, Honest = (
    type(name, (Liar,), {"kind": kind})
    for name, kind in zip(("Sources", "Torch", "Rows", "Noise", "Honest"), KINDS, strict=True)
)


def trial(room: Room) -> Report:
    """One run with a liar among its nodes."""
    report, kind, run = Report(), KINDS[room.number % len(KINDS)], room.run()
    model, texts = tiny_model(room.place / "one", seed=1, width=64), sentences(TEXTS, words=30)
    chunks = corpus(room.place / "chunks", {"Docs": {"a_chunks.json": texts}})
    address = "local:3,twice" if kind == "noise" else "local:3"
    words = ["run", chunks, "--no-ui", "--roster", model, "--offline", "--out", run.parent, "--run-id", run.name]
    words += ["--devices", "cpu", "--threads", 1, "--keep", "both", "--cluster", address]
    name = ("Sources", "Torch", "Rows", "Noise", "Honest")[KINDS.index(kind)]
    done = subprocess.run([sys.executable, "-c", _CODE, name, *map(str, words)], cwd=ROOT, capture_output=True,
                          env=environment({"INTERLOCK_CACHE": str(room.field.place / "cache")}), text=True)  # fmt: skip
    report.tried.update(["liars" if kind != "none" else "honest", f"{kind}: exit {done.returncode}"])
    if done.returncode:
        report.wrong.append(f"{kind}: exit {done.returncode}: {done.stderr[-200:]}")
        return report
    refused = {each["name"] for each in json.loads((run / "summary.json").read_text())["nodes"] if each.get("refused")}
    if refused != ({"node-2"} if kind != "none" else set()):
        report.wrong.append(f"{kind}: named {refused or 'nobody'}: {done.stderr[-200:]}")
    (file,) = run.glob("passes/*/vectors.npy")
    report.wrong += [f"{kind}: {count} wrong rows" for count in [_wrong(model, texts, np.load(file))] if count]
    return report


def _wrong(model: Any, texts: list[str], found: Any) -> int:
    from sentence_transformers import SentenceTransformer

    oracle = SentenceTransformer(str(model), device="cpu")
    alone = np.stack([oracle.encode(text, batch_size=1, normalize_embeddings=True) for text in texts])
    return int((np.sum(alone * found, axis=1) < 0.9999).sum())


CAMPAIGN = Campaign("liars", trial, 20, "one of three nodes gives other rows than its model's")

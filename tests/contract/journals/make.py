"""Make the archives beside this file: runs as a version of Interlock wrote them, with models, chunks and answers.

    python -m tests.contract.journals.make DIRECTORY     # in a checkout of the version whose runs are to be kept

Nothing in a run is edited; what it delivered is left out, since it follows from the rest. The models are very small, so
that an archive carries them; files are stored with holes.
"""

import argparse
import subprocess
import time
from pathlib import Path

from tests.builders import command, corpus, environment, sentences, start, tiny_model, tiny_sparse
from tests.contract.journals import ASKED, FLAGS, KEPT, write_config

SMALL: dict[str, int] = {"width": 8, "layers": 1, "heads": 2, "max_tokens": 64}


def make_home(home: Path) -> Path:
    """Chunks and models below `home`."""
    texts = sentences(16)
    records = [{"text": text, "metadata": {"chunk_id": f"c{at}", "page": at}} for at, text in enumerate(texts)]
    corpus(home / "chunks", {"Docs": {"a_chunks.json": records[:10], "b.jsonl": [*records[10:], {"text": ""}]}})
    corpus(home / "chunks", {"More": {"m.jsonl": [texts[3], "more of it is here", "the end of it"]}})
    tiny_model(home / "models" / "mean", seed=31, **SMALL)
    tiny_model(home / "models" / "cls", seed=32, pooling="cls", **SMALL)
    tiny_sparse(home / "models" / "splade", seed=33, **SMALL)
    write_config(home)
    return home


def call(home: Path, *words: object) -> str:
    """Run the command in `home` to its end."""
    line = command(*words)
    return subprocess.run(line, env=environment(), cwd=home, check=True, stdout=subprocess.PIPE, text=True).stdout


def kill_in_the_middle(home: Path, run: str) -> None:
    """Kill a run between its first and its last batch."""
    journal = home / "runs" / run / "journal.jsonl"
    process = start("run", "chunks", "--run-id", run, *FLAGS, cwd=home)
    while not journal.exists() or journal.read_bytes().count(b'"batch_committed"') < 13:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.001)
    process.kill()
    process.wait()


def pack(home: Path, archive: str, *names: str) -> None:
    """Keep these files and directories of `home` in an archive, but for the socket of a killed run."""
    into = KEPT / f"{archive}.tar.xz"
    line = ["tar", "--sparse", "--exclude=control.sock", "--owner=0", "--group=0", "--sort=name", "-cJf", str(into)]
    subprocess.run([*line, "-C", str(home), *names], env={"XZ_OPT": "-9e", "PATH": "/usr/bin:/bin"}, check=True)
    print(into.name, into.stat().st_size)


def main(directory: Path) -> None:
    home = make_home(directory)
    call(home, "run", "chunks", "--run-id", "finished", *FLAGS, "--qdrant", "store")
    words = ("search", "store", ASKED, "--collection", "docs", "--limit", "5", "--json", "--config", "interlock.toml")
    (home / "answers.jsonl").write_text(call(home, *words))
    kill_in_the_middle(home, "half")
    sim = ("--devices", "sim:2xT4", "--faults", "oom:30,attach:1,lose@cuda:1:60,leak:2MiB")
    call(home, "run", "chunks", "--run-id", "faults", *FLAGS, *sim)
    call(home, "run", "chunks", "--run-id", "cluster", *FLAGS, "--cluster", "local:2")
    beside = ("passes", "journal.jsonl", "run.json", "summary.json")
    pack(home, "finished", "chunks", "models", *(f"runs/finished/{name}" for name in beside))
    pack(home, "store", "store", "answers.jsonl")
    pack(home, "half", "chunks", "models", "runs/half")
    for run in ("faults", "cluster"):
        pack(home, run, *(f"runs/{run}/{name}" for name in beside[1:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser("tests.contract.journals.make", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    main(parser.parse_args().directory.absolute())

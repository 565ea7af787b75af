"""What makes a figure repeatable: each result names its commit, its day, and the sources that it speaks of.

`keep` writes a result with them. `age` reads one against the files as they are now: "" while they are the same.
No host names and no paths outside the repository come out of here.
"""

import argparse
import datetime
import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CODE = ("engine", "console")
RUN = (
    "engine/compute/*.py", "engine/compute/checks", "engine/compute/parts", "engine/corpus", "engine/gpu",
    "engine/models", "engine/flows/run.py", "engine/flows/computing.py", "engine/flows/plan.py",
    "engine/flows/sessions.py", "engine/record", "engine/targets/embedded.py", "engine/targets/shard.py",
    "engine/targets/files", "engine/vectors",
)  # fmt: skip
"""What a run on a CPU goes through."""
NETWORK = (
    "engine/compute/encoder.py", "engine/compute/job.py", "engine/compute/parts", "engine/corpus/tokens.py",
    "engine/models/networks", "engine/models/card.py", "engine/models/memory.py", "engine/models/weights.py",
)  # fmt: skip
"""What tokens go through to their vector, planned as a run plans them."""
UNRECORDED, OLDER = "commit not recorded", "older than the code"


def gather(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    sources: Sequence[str],
) -> None:
    """Measure what the command line asks for, show it, and keep it where `--json` says."""
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    result = measure(options)
    show(result)
    keep(result, options.json, sources)


def keep(result: Mapping[str, Any], path: Path | None, sources: Sequence[str]) -> None:
    """Write the result as JSON where it is wanted; `sources` are globs of the files that it speaks of."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    about = stamp(sources)
    path.write_text(json.dumps({**about, **result, **about}, indent=1) + "\n")


def stamp(sources: Sequence[str]) -> dict[str, Any]:
    """Commit, day and sources; where code changed while it was measured, the result is older than the code."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    same = digest(sources) if digest(CODE) == MEASURED else ""
    return {"commit": BEGAN, "date": day, "sources": list(sources), "sources_sha256": same}


def commit() -> str:
    """The commit that is checked out, "+changes" where files of it were changed; "" where there is no repository."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head}+changes" if changed else head


def commit_of(name: str) -> str:
    """The commit that a branch, a tag or a part of a hash means. Raises CalledProcessError where there is none."""
    return _git("rev-parse", "--short=10", f"{name}^{{commit}}")


def digest(sources: Sequence[str], root: Path = ROOT) -> str:
    """SHA-256 of the names and the bytes of all the files that the globs find; a directory stands for all in it."""
    found = hashlib.sha256()
    for file in sorted({file for source in sources for file in _files(root, source)}):
        name, content = file.relative_to(root).as_posix(), file.read_bytes()
        found.update(f"{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def age(result: Mapping[str, Any], root: Path = ROOT) -> str:
    """How the result stands to the files of today: UNRECORDED, OLDER, or "" for the same."""
    if not result.get("commit"):
        return UNRECORDED
    return "" if digest(result["sources"], root) == result["sources_sha256"] else OLDER


def _files(root: Path, source: str) -> list[Path]:
    return [file for file in root.glob(source if Path(source).suffix else f"{source}/**/*.py") if file.is_file()]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


BEGAN, MEASURED = commit(), digest(CODE)
"""What is measured: the commit and the code at the start of this process."""

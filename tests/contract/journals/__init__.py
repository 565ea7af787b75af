"""Runs of earlier versions, a tar archive each, and what they were made with (`make.py`)."""

from pathlib import Path

from tests.builders import toml

KEPT = Path(__file__).parent
ASKED = "text 7 that is on the way"
ROSTER = "mean=2,cls=1"
FLAGS = (
    *("--config", "interlock.toml", "--roster", ROSTER, "--sparse", "splade", "--token-vectors", "mean"),
    *("--threads", "1", "--out", "runs", "--export", "npy,parquet", "--no-ui", "--quiet"),
    *("--max-refused", "1"),
)


def write_config(home: Path) -> Path:
    """The models of `home` by name, in batches so small that there are many."""
    rows: dict[str, dict[str, object]] = {
        name: {"source": str(home / "models" / name), "batch_tokens": 32} for name in ("mean", "cls", "splade")
    }
    rows["splade"]["kind"] = "sparse"
    return toml(home / "interlock.toml", rows)

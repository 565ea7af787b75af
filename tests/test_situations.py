"""Whatever befalls a run, one look at any size of a terminal says how it stands, why, and what to do."""

import re
from dataclasses import replace

import pytest

from tools.screenshots import shown, steady
from tools.situations import SITUATIONS, SIZES

AGAIN = "interlock demo --scripted --out . --run-id 20260901-080000 --resume"
SAID = {
    "well": (
        "● RUN  all is well", "SIMULATED", "eta ",
        "2 inputs left out, as allowed (--max-refused 1%,files): press s for which and why",
    ),
    "taken": (
        "▲ CROWDED", "nothing to do now", "cuda:0: others hold 2.0 GiB (pid 4711 kim)", "next batch needs 740.0 MiB",
        "until those end", "eta ",
    ),
    "card-lost": (
        "▲ DEGRADED", "nothing to do now", "1 GPU lost (cuda:1), no work lost: the batches go to cuda:0",
        "interlock doctor --gpu", "ECC error", "eta ", "y Copy",
    ),
    "parked": (
        "▲ TEXT PARKED", "1 text parked, no vector (Handbook/part-0007_chunks.json record 1,284, chunk f3b1c2d4-5e6f",
        "after the run retry with", f"{AGAIN} --retry-parked", "eta ",
    ),
    "disk": (
        "▲ LOW DISK", "act now", "412.0 MiB free on the disk of /home/operator",
        "make that 1.0 GiB, or the run stops once it is full", "eta ",
        f"if it stops for that, continue it with {AGAIN}",
    ),
    "memory": (
        "▲ LOW MEMORY", "act now", "187.0 MiB of the host's memory free",
        "end other programs (most: java, pid 3310, 11.0 GiB)",
        f"{AGAIN} --warm 0", "eta ",
    ),
    "node-lost": (
        "▲ DEGRADED", "nothing to do now", "1 node lost (node-3), no work lost: the batches go to the other devices",
        "eta ",
    ),
    "server": (
        "✖ UPLOAD WAITING", "act now", "61% uploaded", "7 attempts",
        "check the server, which is retried for 3:25 more: 503",
        "if it gives up, upload the rest with interlock upload runs/20260901-080000 --qdrant",
        "the run is over (INCOMPLETE): 1 text parked", "; after the upload retry it (upload it again after that) with",
        f"{AGAIN} --retry-parked", "interlock doctor --gpu",
    ),
    "deadline": (
        "▲ LATE", "of work left, 0:40 to the deadline: it may stop before that, unfinished", AGAIN, "eta ",
        "no finished batch is lost: continue it after that with",
    ),
    "paused": (
        "■ PAUSED  no hurry", "by operator at the console 0:00 ago, devices stay held; P resumes it",
        "P Resume", "S Stop",
    ),
    "cpu": (
        "▲ DEGRADED", "sim-bge-m3 on the CPU, only slower: fits on no GPU", f"{AGAIN} --ceiling 3.5GiB", "eta ",
        "on CPU", "left cpu",
    ),
    "shared": ("▲ TEXT PARKED", "nothing to do now", "eta ", "1 warning", "side by side"),
    "ended-parked": (
        "✖ INCOMPLETE  needs you", "1 text parked, no vector of 3 models (part00_chunks.json record 1",
        f"retry it with {AGAIN} --retry-parked",
        "1 GPU lost (cuda:1); check it before a retry with interlock doctor --gpu",
    ),
    "died": (
        "✖ RUN PROCESS DIED  needs you", f"continue it with {AGAIN}", "last 08:00:",
        "process died: no", "y Copy",
    ),
    "stopped": (
        "▲ STOPPED  no hurry", "by kim@gpu-1 (pid 4711)", f"when wanted, continue it with {AGAIN}", "y Copy",
    ),
    "resumed": ("● RUN", "resumed", "eta ", "2 on disk", "0:24 with its process", "kept"),
}  # fmt: skip
"""What stands on the screen, line breaks or not."""


@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("shot", SITUATIONS, ids=lambda shot: shot.name)
def test_one_look_says_how_a_run_stands_why_and_what_to_do(shot, size):
    with steady():
        text = shown(shot, size)
    lines = text.splitlines()
    assert len(lines) == size[1] and "SIMULATED" in lines[0]
    joined = re.sub(r"[\s│]+", "", text)
    lacking = [said for said in SAID[shot.name] if re.sub(r"\s+", "", said) not in joined]
    assert lacking == []


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (250, 70)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize(("name", "retries"), [("parked", True), ("well", False), ("ended-parked", True)])
def test_the_whole_command_that_goes_on_with_a_run_is_one_key_away_while_it_runs_too(name, retries, size):
    shot = next(each for each in SITUATIONS if each.name == name)
    with steady():
        lines = shown(replace(shot, keys=("?",)), size).splitlines()
    top, left = next((at, line.index("╭─ Keys")) for at, line in enumerate(lines) if "╭─ Keys" in line)
    text = " ".join(line[left : lines[top].index("╮", left)] for line in lines[top:])
    joined = re.sub(r"[\s│]+", "", text)
    whole = "next interlock demo --scripted --out . --run-id 20260901-080000 --resume" + " --retry-parked" * retries
    assert re.sub(r"\s+", "", whole) in joined and ("--retry-parked" in text) is retries

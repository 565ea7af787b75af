"""Whatever befalls a run, one look at any size of a terminal says how it stands, why, and what to do."""

import re

import pytest

from tools.screenshots import shown, steady
from tools.situations import SITUATIONS, SIZES

SAID = {
    "well": ("● RUN", "SIMULATED", "eta "),
    "taken": ("▲ CROWDED", "cuda:0: others hold 2.0 GiB (pid 4711 kim), 210.0 MiB free", "end those", "eta "),
    "card-lost": ("✖ DEGRADED", "1 GPU lost (cuda:1)", "check it, the rest goes on", "ECC error", "eta "),
    "parked": (
        "✖ RUN", "1 text without a vector (Handbook/part-0007_chunks.json record 1,284, chunk f3b1c2d4-5e6f",
        "--resume --retry-parked", "eta ",
    ),
    "disk": ("▲ LOW DISK", "412.0 MiB free on the disk of", "free some, or the run stops there", "eta "),
    "memory": ("▲ LOW MEMORY", "187.0 MiB of the host's memory free", "end other programs", "lower --warm or", "eta "),
    "node-lost": ("✖ DEGRADED", "1 node lost (node-3)", "check it, the rest goes on", "eta "),
    "server": ("WATCH WAITING FOR SERVER", "1,280 of 2,096 points", "(7 attempts", "check the server"),
    "deadline": ("▲ LATE", "1:33 of work is more than the 0:40 left: it stops then, to be resumed", "eta "),
    "paused": ("■ PAUSED", "by operator", "P Resume"),
    "cpu": ("▲ DEGRADED", "sim-bge-m3 on the CPU: no GPU has the 2.9 GiB", "raise --ceiling"),
    "shared": ("2 passes at once", "eta ", "EXCL off"),
    "ended-parked": ("◇ ✖ RUN INCOMPLETE", "1 text has no sim-bge-m3 vector: not finite", "--resume --retry-parked"),
    "died": ("✖ RUN PROCESS DIED", "continue it with interlock demo --scripted --out runs --run-id", "last 08:00:40"),
    "stopped": ("◇ ▲ RUN STOPPED", "stopped by the operator", "continue it with interlock demo --scripted"),
    "resumed": ("● RUN", "resumed", "eta "),
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

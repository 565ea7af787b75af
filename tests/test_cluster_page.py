"""docs/cluster.md: its commands are those of the installed Ray and Interlock, its script and manifest parse."""

import os
import re
import shlex
import subprocess
import time

import pytest

from interlock.console.cli import parser
from tests.builders import ROOT

PAGE = (ROOT / "docs" / "cluster.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)


def block(kind: str) -> str:
    (found,) = (text for each, text in BLOCKS if each == kind)
    return found


def manifest() -> list[dict]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(block("yaml")))


def commands(program: str) -> list[list[str]]:
    """Every command of a program in the page, as a shell splits it."""
    lines = [line for kind, text in BLOCKS if kind in ("", "bash") for line in text.replace("\\\n", " ").splitlines()]
    found = [
        shlex.split(line.removeprefix("until ").removesuffix(" &"), comments=True)
        for line in lines
        if f"{program} " in line
    ]
    return [words[words.index(program) + 1 :] for words in found if program in words]


def interlock_commands() -> list[list[str]]:
    return [*commands("interlock"), shlex.split(manifest()[0]["spec"]["entrypoint"])[1:]]


def test_the_page_has_commands_of_both_programs():
    assert len(commands("ray")) >= 7
    assert len(interlock_commands()) >= 6


def test_every_option_that_the_page_gives_ray_is_one_of_the_installed_rays():
    scripts = pytest.importorskip("ray.scripts.scripts")
    for words in commands("ray"):
        command = scripts.cli.commands[words[0]]
        known = {option for each in command.params for option in each.opts}
        given = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
        assert given <= known, words


def test_every_interlock_command_of_the_page_is_understood():
    for words in interlock_commands():
        parsed = parser().parse_args([word.replace("$ip", "10.0.0.1") for word in words])
        assert parsed.cluster or parsed.command == "doctor", words


def test_the_batch_script_parses():
    bash = subprocess.run(["bash", "-n"], input=block("bash"), text=True, capture_output=True)
    assert (bash.returncode, bash.stderr) == (0, "")


STANDINS = {
    "srun": 'echo "srun $*" >> "$HOME/told"',
    "ray": 'echo "ray $*" >> "$HOME/told"',
    "hostname": "echo 10.0.0.1",
    "scontrol": 'echo "scontrol $*" >> "$HOME/told"',
    "interlock": """echo "interlock $*" >> "$HOME/told"
trap 'sleep 0.2; echo stopped >> "$HOME/told"; exit 143' TERM
[ "$ENDS" = late ] || exit "$ENDS"
for _ in $(seq 200); do sleep 0.05; done""",
}


@pytest.mark.parametrize(
    ("ends", "code", "again"), [("0", 0, False), ("4", 4, True), ("late", 143, True), ("1", 1, False), ("2", 2, False)]
)
def test_the_batch_script_queues_itself_again_for_what_can_be_resumed_and_ends_as_the_run_does(
    tmp_path, ends, code, again
):
    """Run by bash as sbatch would, with stand-ins for what a machine without Slurm lacks."""
    place = tmp_path / "interlock" / "bin"
    place.mkdir(parents=True)
    (place / "activate").write_text("")
    for name, does in STANDINS.items():
        (place / name).write_text(f"#!/bin/bash\n{does}\n")
        (place / name).chmod(0o755)
    path = f"{place}:{os.environ['PATH']}"
    job = {"HOME": str(tmp_path), "PATH": path, "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_ID": "77", "ENDS": ends}
    process = subprocess.Popen(["bash", "-c", block("bash")], env=job, stderr=subprocess.PIPE, text=True)
    told, until = tmp_path / "told", time.monotonic() + 30
    while ends == "late" and "interlock run" not in (told.read_text() if told.exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.02)
    if ends == "late":
        time.sleep(0.2)  # the stand-in sets its trap
        process.terminate()
    assert (process.wait(30), process.stderr.read()) == (code, "")
    said = told.read_text()
    assert ("scontrol requeue 77" in said) is again and ("stopped" in said) is (ends == "late")
    assert "--exclude=10.0.0.1" in said and "--resume --deadline 7h45m --log-json" in said


def test_the_manifest_is_a_job_on_a_cluster_whose_pods_alone_reach_each_other():
    job, policy = manifest()
    assert (job["apiVersion"], job["kind"], policy["kind"]) == ("ray.io/v1", "RayJob", "NetworkPolicy")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert all(group["template"]["metadata"]["labels"] == chosen for group in groups)
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert f"--metrics 0.0.0.0:{head['ports'][0]['containerPort']}" in job["spec"]["entrypoint"]
    assert policy["spec"]["ingress"][-1]["ports"][0]["port"] == head["ports"][0]["containerPort"]
    images = {each["image"] for group in groups for each in group["template"]["spec"]["containers"]}
    assert len(images) == 1
    version = re.search(r"^FROM rayproject/ray:([\d.]+)-", block("dockerfile"), re.M)
    assert version and version[1] == cluster["rayVersion"]

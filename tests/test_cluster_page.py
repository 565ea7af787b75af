"""docs/cluster.md: its commands are those of the installed Ray and Interlock, its script and manifest parse."""

import re
import shlex
import subprocess

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
    found = [shlex.split(line.removeprefix("until "), comments=True) for line in lines if f"{program} " in line]
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


def test_the_manifest_is_a_job_on_a_cluster_whose_pods_alone_reach_each_other():
    job, policy = manifest()
    assert (job["apiVersion"], job["kind"], policy["kind"]) == ("ray.io/v1", "RayJob", "NetworkPolicy")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert all(group["template"]["metadata"]["labels"] == chosen for group in groups)
    images = {each["image"] for group in groups for each in group["template"]["spec"]["containers"]}
    assert len(images) == 1
    version = re.search(r"^FROM rayproject/ray:([\d.]+)-", block("dockerfile"), re.M)
    assert version and version[1] == cluster["rayVersion"]

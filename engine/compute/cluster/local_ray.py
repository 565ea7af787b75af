"""The process that keeps a Ray of its own on this machine, for `--cluster local:N`: run as a script, N its argument.

Says its address on stdout once the first node is there, and `ready` once all are. Ends them when stdin ends, as it does
however the process that started this one ends; what they wrote is removed then, all but logs if `keep` was said. Were
this process killed itself, the kernel ends what it started (Ray sets PR_SET_PDEATHSIG).

It has a session of its own: Ctrl-C and a hangup of the terminal are for the run, which ends its nodes in order. Its
files lie in a directory of its own: Ray's would tell every `auto` on this machine of these nodes.
"""

import os
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp

STORE = 192 << 20
"""Bytes of each node's object store: what is on its way to or from one node, 64 MiB at most, and the next beside it.
More is spilled to the disk. Memory is taken as it is used."""
MOST = 16
HEARTBEATS = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5, "health_check_timeout_ms": 2000}


def keep(nodes: int) -> bool:
    """Run so many nodes until stdin ends; returns whether what they wrote is to be kept."""
    from ray.cluster_utils import Cluster

    common = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE}  # without CPUs no worker is started ahead
    first = {**common, "include_dashboard": False, "include_log_monitor": False, "_system_config": HEARTBEATS}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        _say(cluster.address)
        for _ in range(nodes - 1):
            cluster.add_node(wait=False, **common)
        cluster.wait_for_nodes()
        _say("ready")
        return "keep" in sys.stdin.read()
    finally:
        cluster.shutdown()


def _say(line: str) -> None:
    os.write(ANSWERS, f"{line}\n".encode())


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no answer
    home = Path(mkdtemp(prefix="il-", dir="/tmp"))  # the names of sockets must be short
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=str(home))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nodes of one machine do not share its GPUs
    for name in ("RAY_ADDRESS", "RAY_BACKEND_LOG_LEVEL", "RAY_gcs_rpc_server_reconnect_timeout_s"):
        os.environ.pop(name, None)
    wanted = False
    try:
        wanted = keep(int(sys.argv[1]))
    finally:
        for left in home.glob("ray/session_*/*") if wanted else [home]:
            if left.is_dir() and left.name != "logs":
                shutil.rmtree(left, ignore_errors=True)

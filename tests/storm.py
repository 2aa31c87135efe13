"""Two Ray nodes on this machine, and what can go wrong with them while a command runs."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

import psutil
from ray.cluster_utils import Cluster

_ENCODER = "MapWorker(MapBatches(EncodeUnit))"
# 1 CPU a node, and the smallest object store that Ray allows.
_NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
Disturbance = Callable[["Storm"], None]


@contextlib.contextmanager
def two_nodes() -> Iterator[Cluster]:
    """Runs a head and a second node; only the second may be lost."""
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    try:
        cluster.add_node(**_NODE)
        yield cluster
    finally:
        cluster.shutdown()


class Storm:
    """One command, begun again whenever it was killed, until it ends by itself."""

    def __init__(self, cluster: Cluster, command: Sequence[str], environment: dict[str, str]) -> None:
        self.cluster, self.command = cluster, command
        self.environment = {**os.environ, **environment, "RAY_ADDRESS": cluster.address}
        self.driver = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def pass_over(
        self, commits: Callable[[], dict[str, object]], disturbances: Sequence[tuple[int, Disturbance]], limit: float
    ) -> dict[str, object]:
        """Brings each disturbance about when there are so many commits; returns each commit as it was first seen.

        Args:
            commits: returns the commits by unit, with something that changes whenever one is written again.
            limit: seconds.
        """
        seen: dict[str, object] = {}
        left = list(disturbances)
        deadline = time.monotonic() + limit
        while self.driver.poll() is None:
            assert time.monotonic() < deadline, f"not done in time; {len(seen)} commits, {len(left)} disturbances left"
            seen = {**commits(), **seen}
            if left and len(seen) >= left[0][0]:
                left.pop(0)[1](self)
            time.sleep(0.02)
        _, errors = self.driver.communicate()
        assert self.driver.returncode == 0, errors
        assert not left, "the command was done before everything had happened"
        return seen

    def close(self) -> None:
        """Ends the command if it still runs."""
        if self.driver.poll() is None:
            self.driver.kill()
            self.driver.communicate()

    def encoders(self) -> list[psutil.Process]:
        """Returns the processes that hold an encoder, on all nodes."""
        found = []
        for node in self.cluster.list_all_nodes():
            for process in node.all_processes["raylet"]:
                for child in psutil.Process(process.process.pid).children():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if _ENCODER in " ".join(child.cmdline()):
                            found.append(child)
        return found


def kill_an_encoder(storm: Storm) -> None:
    """SIGKILL."""
    for process in storm.encoders()[:1]:
        process.kill()


def lose_a_node(storm: Storm) -> None:
    """Kills the second node with all its processes, as a reclaimed machine goes, and adds a new one."""
    storm.cluster.remove_node(next(iter(storm.cluster.worker_nodes)), allow_graceful=False)
    storm.cluster.add_node(**_NODE)


def kill_the_driver(storm: Storm) -> None:
    """SIGKILL, and the same command again when its workers, which end within seconds, are gone."""
    storm.driver.kill()
    storm.driver.communicate()
    deadline = time.monotonic() + 60
    while storm.encoders():
        assert time.monotonic() < deadline, "workers outlive their driver"
        time.sleep(0.1)
    storm.driver = storm._start()

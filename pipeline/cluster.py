"""Starting Ray, and what the cluster has; nothing else asks.

With RAY_ADDRESS set (as in a submitted job) that cluster is used; without it, one on this machine for the command's
duration.
"""

import dataclasses
import logging
import os
import re
import sys

import ray
import torch

from pipeline.errors import RunError, UsageError

# Off unless the user says otherwise, also in every process that Ray starts.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_EXCEPTION_NAME = re.compile(r"^[\w.]*[A-Z]\w*(Error|Exception|Invalid|NotImplemented): ")
_LOCAL_OBJECT_STORE_BYTES = 512 * 2**20


@dataclasses.dataclass(frozen=True)
class Resources:
    """What one encoder actor is given.

    Attributes:
        gpus: GPUs an actor; 0 on CPUs.
        threads: torch threads an actor on CPUs; None on GPUs (torch's default).
        tokenizers: how many units are tokenized at once.
    """

    gpus: int
    threads: int | None
    tokenizers: int


def is_remote() -> bool:
    """Whether a running cluster was named."""
    return bool(os.environ.get("RAY_ADDRESS"))


def device_type(device: str, num_actors: int) -> str:
    """Returns "cuda" or "cpu": for ``auto`` by the cluster's GPUs, or this machine's when there is no cluster.

    Raises:
        UsageError: fewer GPUs on this machine than actors, which would wait for them for ever. A cluster may grow.
    """
    if device == "cpu":
        return device
    if is_remote():
        connect()
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if device == "cuda" and gpus < num_actors:
            print(f"the cluster has {gpus} GPU(s) now for {num_actors} actor(s), and waits for more", file=sys.stderr)
        return "cuda" if gpus or device == "cuda" else "cpu"
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus < num_actors and (device == "cuda" or gpus):
        raise UsageError(
            f"--num-actors {num_actors} on --device {device}: this machine has {gpus} usable GPU(s), one is needed for "
            "each actor; give fewer actors, or --device cpu"
        )
    return "cuda" if gpus else "cpu"


def connect() -> None:
    """Connects to the cluster, or starts one on this machine; does nothing when that was done."""
    if ray.is_initialized():
        return
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if is_remote():
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    else:
        # Without this, Ray leaves a token in the home folder that changes how later clusters behave.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_LOCAL_OBJECT_STORE_BYTES,
        )
    context = ray.data.DataContext.get_current()
    context.print_on_execution_start = False
    context.enable_progress_bars = False
    # Ray Data would end a run in which no unit is finished for half an hour, however busy its encoders are.
    context.execution_no_progress_timeout_s = -1
    # A failure reaches the user as one message; Ray Data would print its traceback besides (its log file keeps it).
    logging.getLogger("ray.data").setLevel(logging.CRITICAL + 1)


def disconnect() -> None:
    """Ends the cluster that was started, or leaves the one that was joined."""
    if ray.is_initialized():
        ray.shutdown()


def worker_failure(problem: Exception) -> RunError:
    """Returns what a user needs to know of an exception that Ray brought from a worker, without its tracebacks."""
    lines = [line for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    # A remote traceback ends with the exception (and Ray's advice); Ray's own messages begin with what happened.
    raised = [
        _EXCEPTION_NAME.sub("", line) for line in lines if _EXCEPTION_NAME.match(line) and not line.startswith("ray.")
    ]
    reason = raised[-1] if raised else lines[0]
    session = ray.get_runtime_context().get_session_name()
    return RunError(
        f"a worker failed: {reason.rstrip('.')}. What was committed stays, and the same command continues from there. "
        f"Ray's logs of session {session} have the details"
    )


def resources(device: str, num_actors: int) -> Resources:
    """Returns what each of ``num_actors`` encoders on a device type is given."""
    tokenizers = max(1, min(_cpus(), num_actors))
    if device == "cuda":
        return Resources(gpus=1, threads=None, tokenizers=tokenizers)
    return Resources(gpus=0, threads=threads(num_actors), tokenizers=tokenizers)


def threads(num_actors: int) -> int:
    """Returns the torch threads of each of ``num_actors`` encoders on CPUs."""
    return max(1, _cpus() // num_actors)


def _cpus() -> int:
    """Of the cluster, or of this machine as long as there is none."""
    return int(ray.cluster_resources().get("CPU", 1)) if ray.is_initialized() else os.cpu_count() or 1

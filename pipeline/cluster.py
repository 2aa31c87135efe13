"""Starting Ray, and what the cluster has; nothing else asks.

With RAY_ADDRESS set (as in a submitted job) that cluster is used; without it, one on this machine for the command's
duration.
"""

import dataclasses
import logging
import os

import ray
import torch

# Off unless the user says otherwise, also in every process that Ray starts.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
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


def device_type(device: str) -> str:
    """Returns "cuda" or "cpu" for ``auto``: by the cluster's GPUs, or this machine's when there is no cluster."""
    if device != "auto":
        return device
    if is_remote():
        connect()
        return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


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
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def resources(device: str, num_actors: int) -> Resources:
    """Returns what each of ``num_actors`` encoders on a device type is given."""
    cpus = int(ray.cluster_resources().get("CPU", 1))
    tokenizers = max(1, min(cpus, num_actors))
    if device == "cuda":
        return Resources(gpus=1, threads=None, tokenizers=tokenizers)
    return Resources(gpus=0, threads=max(1, cpus // num_actors), tokenizers=tokenizers)

"""Vectors of fewer values: principal components, fitted once on a sample of the run's own rows.

The fit lies in the run's folder as a subspace file, which the run then removes like any other; so its hash is a part of
the run's identity, and queries go the same way.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import ray

from extractors.subspace import Subspace
from pipeline import cluster
from pipeline.config import EncodeConfig
from pipeline.encode import prepare, run
from pipeline.errors import UsageError
from pipeline.parquet import to_bytes
from pipeline.sampling import sampled_texts
from pipeline.storage import Folder
from pipeline.store import VECTOR, VectorStore
from pipeline.subspaces import read_subspace
from pipeline.vectors import matrix

COMPONENTS = "components.safetensors"
_SAMPLE = "sample"
_UNITS, _ROWS_OF_A_UNIT = 64, 128


def with_output_dim(config: EncodeConfig) -> EncodeConfig:
    """Returns the config with the components as its last subspace; fits them first, if they are not there yet.

    Raises:
        UsageError: the output holds a run with another width, the vectors are no wider than asked, or the sample is too
            small to tell as many directions.
    """
    if config.output_dim is None:
        return config
    folder = Folder(config.output)
    plain = config.model_copy(update={"output_dim": None})
    if folder.exists(COMPONENTS):
        width = read_subspace(folder.at(COMPONENTS)).about.get("output_dim")
        if width != config.output_dim:
            raise UsageError(
                f"output {folder.url} holds vectors of {width} values, and --output-dim is {config.output_dim}"
            )
    elif VectorStore(config.output).run() is not None:
        raise UsageError(f"output {folder.url} holds a run without --output-dim; give another --output")
    else:
        folder.publish(COMPONENTS, _fitted(plain, folder, config.output_dim).to_bytes())
    VectorStore(f"{folder.url}/{_SAMPLE}/vectors").delete()
    folder.remove(f"{_SAMPLE}/texts.parquet")
    Folder(folder.at(_SAMPLE)).delete_if_empty()
    return plain.model_copy(update={"subspace": [*config.subspace, f"{folder.url}/{COMPONENTS}"]})


def _fitted(config: EncodeConfig, folder: Folder, width: int) -> Subspace:
    changes = {"input": [f"{folder.url}/{_SAMPLE}/texts.parquet"], "output": f"{folder.url}/{_SAMPLE}/vectors"}
    names = {"id_column": "id", "text_column": "text", "keep": []}
    checked = prepare(config)
    texts = [
        text for text in sampled_texts(checked.todo, checked.job.layout, _UNITS, _ROWS_OF_A_UNIT) if text is not None
    ]
    if width >= checked.job.plan.width:
        raise UsageError(f"--output-dim {width}: the vectors have {checked.job.plan.width} values; give less")
    if len(texts) <= width:
        raise UsageError(f"--output-dim {width} needs a sample of more rows than that, and the input has {len(texts)}")
    folder.publish(f"{_SAMPLE}/texts.parquet", to_bytes(pa.table({"id": range(len(texts)), "text": texts})))
    work = prepare(config.model_copy(update={**changes, **names}))
    run(work, config.num_actors, config.stalled_after)
    cluster.connect()
    try:
        tensors, explained = ray.get(ray.remote(num_cpus=1)(components).remote(work.store.url, width))
    except ray.exceptions.RayError as problem:
        raise cluster.worker_failure(problem) from problem
    about: dict[str, Any] = {"construction": "principal-components", "place": "embedding", "output_dim": width}
    return Subspace({**work.job.identity, **about, "rows": len(texts), "explained_variance": explained}, tensors)


def components(vectors: str, width: int) -> tuple[dict[str, np.ndarray], float]:
    """Returns mean [D] and principal directions [D, width] of a vectors folder, and their share of the variance."""
    rows, total, products = 0, np.zeros(()), np.zeros(())
    for _, table in VectorStore(vectors).iter_vectors([VECTOR]):
        part_ND = matrix(table.column(VECTOR)).astype(np.float64)
        rows, total, products = rows + len(part_ND), total + part_ND.sum(axis=0), products + part_ND.T @ part_ND
    mean_D = total / rows
    variances, directions_DD = np.linalg.eigh(products / rows - np.outer(mean_D, mean_D))
    kept = np.arange(len(variances))[::-1][:width]
    tensors = {"embedding.mean": mean_D, "embedding.matrix": directions_DD[:, kept]}
    share = float(variances[kept].sum() / variances.sum())
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}, share

"""THE config: one model a command; each field with its unit, its default and what it is for.

The command line and a YAML file fill the same fields (--unit-rows and unit_rows).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

STALLED_AFTER = 600.0

Positive = Annotated[int, Field(gt=0)]
# One value where a list is meant is clear enough.
Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


def _split(given: Any) -> list[str]:
    parts = given if isinstance(given, list | tuple) else [given]
    for part in parts:
        if not isinstance(part, str | int) or isinstance(part, bool):
            raise ValueError(
                f"{part!r} is no name; YAML reads no, on and the like as true or false: write them in quotes"
            )
    return [name.strip() for part in parts for name in str(part).split(",")]


# By comma, or a list.
Names = Annotated[list[str], BeforeValidator(_split)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Config):
    """Which model reads which method's vectors, and on what."""

    model: str = Field(description="hub id (org/name), local folder, or .gguf file")
    revision: str | None = Field(None, description="branch, tag or commit of a hub id (default: main)")
    method: str = Field("va", description="a name from `isogloss methods`, or a YAML file that composes one")
    subspace: Texts = Field([], description="file written by fit, to remove a language's trace; repeatable, in order")
    subspace_strength: float = Field(
        1.0, allow_inf_nan=False, description="of removal in the blocks: 1 removes, negative values amplify"
    )
    allow_subspace_mismatch: bool = Field(
        False, description="use a subspace that was fitted for another model, prompt or method, if its sizes fit"
    )
    max_length: Positive | None = Field(
        None, description="longest input in tokens, template included (default: 512, or the model's limit if less)"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of weights and activations; auto is bfloat16 on a GPU, float32 on a CPU"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto is cuda where the cluster has GPUs")
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = Field(
        "auto", description="attention implementation; auto is sdpa, or eager where a family has no sdpa"
    )
    token_budget: Positive | None = Field(
        None, description="tokens a batch, padding included (default: 2048 on a CPU, 32768 on a GPU)"
    )
    num_actors: Positive = Field(1, description="encoder actors, one GPU each where there are GPUs")


class EncodeConfig(ModelConfig):
    """Parquet shards -> Parquet vectors."""

    input: Texts = Field(min_length=1, description="Parquet file, folder or glob, local or URL; repeatable")
    output: str = Field(description="folder for the vectors, local or URL; run again to finish what is missing")
    id_column: str = Field("id", description="integer or string column with the rows' ids; `row` makes ids of file#row")
    text_column: str = Field("text", description="string column to embed")
    keep: Texts = Field([], description="column to carry into the output; repeatable")
    vector_dtype: Literal["float32", "float16"] = Field("float32", description="of the stored vectors")
    output_dim: Positive | None = Field(
        None, description="values of a vector: its principal components, fitted on a sample of the input (default: all)"
    )
    unit_rows: Positive = Field(4096, description="most rows in a unit of work, the grain of resuming")
    max_quarantined: float = Field(
        0.01, ge=0, le=1, description="share of rows that may be kept out before exit status 4"
    )
    stalled_after: float = Field(
        STALLED_AFTER, gt=0, description="seconds without a finished unit until those in work are named on the terminal"
    )
    plan: bool = Field(False, description="print what would be done and stop")
    price_per_hour: float | None = Field(
        None, ge=0, description="of all machines the run occupies, for the plan's estimate of its cost"
    )


class IndexConfig(_Config):
    """Vectors -> a searchable index."""

    vectors: str = Field(description="folder written by encode, or Parquet file(s) with id and vector columns")
    output: str = Field(description="folder for the index")
    kind: Literal["auto", "flat"] = Field("auto", description="flat compares with every vector, exactly; auto is flat")
    metric: Literal["cosine", "ip", "l2"] = Field("cosine", description="cosine, inner product, or squared Euclidean")


class SearchConfig(_Config):
    """Queries -> hits, with the encoder recorded in the index."""

    index: str = Field(description="folder written by index")
    query: Texts = Field([], description="a text to search for; repeatable")
    queries: str | None = Field(
        None, description="file of queries: .txt (one a line), .jsonl or .parquet with text (or vector), and query_id"
    )
    k: Positive = Field(10, description="hits a query")
    language: str | None = Field(None, description="only hits whose kept column lang (or language) has this value")
    output: str | None = Field(None, description="Parquet file for query_id, rank, id, score and the kept columns")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the queries are encoded")


class EvaluateConfig(ModelConfig):
    """Scores a method on tasks."""

    task: Texts = Field(min_length=1, description="task YAML file; repeatable")
    output: str = Field(description="folder for <task>.json and items/<task>.parquet")


class _FitOptions(ModelConfig):
    """What a fit and a sweep over fits share."""

    input: Texts = Field(
        [], description="parallel Parquet: long (group, lang, text) or wide (a column a language); repeatable"
    )
    languages: Names = Field([], description="languages of the corpus to fit on, by comma (default: all of a long one)")
    groups: Positive | None = Field(None, description="most groups of translations, the first ones (default: all)")
    rank: Positive | None = Field(None, description="directions removed (default: languages - 1; 1 for lir)")
    start_layer: int | None = Field(
        None, ge=0, description="first block steered, 0-based (default: the paper's for its backbones)"
    )
    construction: Literal["prsr", "random", "language-mean", "shuffled-pair", "lir", "lsar"] = Field(
        "prsr", description="how directions are found; lir and lsar are baselines on finished vectors"
    )
    place: Literal["blocks", "embedding"] | None = Field(
        None, description="removed in the blocks, or from the finished vector (default: blocks; lir, lsar: embedding)"
    )
    removal: Literal["hard", "hard-uncentred", "soft"] = Field(
        "hard",
        description="on finished vectors: project out (after subtracting the mean, or not), or whiten what differs",
    )
    shrinkage: float = Field(0.3, ge=0, le=1, description="of soft removal, from full whitening (0) to none (1)")
    states: str | None = Field(
        None, description="folder for what the model gives, kept for other fits (default: OUTPUT.states, deleted)"
    )


class FitConfig(_FitOptions):
    """Fits a language subspace from a parallel corpus."""

    input: Texts = Field(
        min_length=1,
        description="parallel Parquet: long (group, lang, text) or wide (a column a language); repeatable",
    )
    output: str = Field(description="safetensors file for the subspace, local or URL")
    keep_states: bool = Field(False, description="keep OUTPUT.states: other fits from it need no model run")
    plan: bool = Field(False, description="print what would be done and stop")


class SweepConfig(_FitOptions):
    """Scores over layers, start layers, ranks, group counts or language counts."""

    over: Literal["layer", "start-layer", "rank", "groups", "languages"] = Field(
        description="layer: blocks the method reads, one at a time; the others: of a subspace that is fitted"
    )
    values: Names = Field(
        [], description="by comma (default: all layers; all blocks to start at; powers of two up to the whole)"
    )
    task: Texts = Field(
        min_length=1, description="task YAML file to score each value on, a development set; repeatable"
    )
    output: str = Field(description="folder for sweep.json, sweep.png, recipe.yaml and the subspaces")


class MethodsConfig(_Config):
    """Lists the methods."""

    model: str | None = Field(None, description="resolve layers and widths for this model")
    revision: str | None = Field(None, description="of a hub id")


class DemoConfig(_Config):
    """The whole chain on real text."""

    output: str = Field("demo-output", description="folder for everything the demo writes")
    messages: Positive = Field(40, description="parallel messages, each in all nine languages")

"""Tiny models and tokenizers made on the spot: real families of transformers with random weights."""

import os

# Read when huggingface_hub is imported: a test must not wait for a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Two processes of tests share two cores: more threads, or workers that give way to them, would only make them wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

SENTENCES = [
    "The station is behind the old market.",
    "La gare se trouve derrière le vieux marché.",
    "Der Bahnhof liegt hinter dem alten Markt.",
    "Вокзал находится за старым рынком.",
    "駅は古い市場の裏にあります。",
    "Is it 42 or 1,024?  Two  spaces, and\na new line.",
    'She said "never again" and left.',
    "a",
    "Many words follow one another here so that this sentence is a good deal longer than all of the other ones are.",
    "🙂 emoji and ﬁ ligatures",
    "मौसम आज बहुत अच्छा है",
    "الطقس جميل اليوم",
]


def byte_level(start: bool = False, end: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, as GPT-2, Llama-3 and Qwen have; optionally adds <s> before or </s> after a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "</s>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if start or end:
        template = f"{'<s> ' if start else ''}$A{' </s>' if end else ''}"
        ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def with_marker_beyond_embeddings(rows: int) -> PreTrainedTokenizerFast:
    """A tokenizer with an added token whose id no embedding of a model with ``rows`` rows has."""
    tokenizer = byte_level()
    fill = [AddedToken(f"<fill{i}>", special=False) for i in range(rows - len(tokenizer))]
    tokenizer.add_tokens([*fill, AddedToken("<beyond>", special=False)])
    assert tokenizer.convert_tokens_to_ids("<beyond>") == rows
    return tokenizer


# Small, with every size different from the others where the family allows it.
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}
_SPECIAL: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def llama(**changes: Any) -> LlamaConfig:
    """4 blocks, hidden 64, 8 query heads on 2 key/value heads of 8."""
    return LlamaConfig(**{**_SIZES, **changes})


CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": llama,
    "llama-mha": lambda: llama(num_key_value_heads=8),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    # Heads of 16, so that heads x head width (128) is not the hidden size (64).
    "qwen3": lambda: Qwen3Config(**_SIZES, head_dim=16),
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **_SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1
    ),
    # A norm after attention, capped scores, and blocks that see 8 tokens back only.
    "gemma2": lambda: Gemma2Config(**_SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=16, **_SPECIAL),
    "gemma3": lambda: Gemma3TextConfig(**_SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=16, **_SPECIAL),
    "phi3": lambda: Phi3Config(**_SIZES, **_SPECIAL),
    "olmo2": lambda: Olmo2Config(**_SIZES, **_SPECIAL),
    "gpt-neox": lambda: GPTNeoXConfig(
        **{key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}, **_SPECIAL
    ),
    # Learned absolute positions, 128 of them.
    "gpt2": lambda: GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=512, n_positions=128, **_SPECIAL),
}


def save_model(
    folder: Path,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    change: Callable[[Any], None] | None = None,
) -> str:
    """Saves a model with random weights, spread wider than usual so that texts differ, and a tokenizer."""
    torch.manual_seed(7)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
        if change is not None:
            change(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of tiny models by family; none of their tokenizers adds a start token."""
    base = tmp_path_factory.mktemp("models")
    return {name: save_model(base / name, make(), byte_level()) for name, make in CONFIGS.items()}


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests of a session."""
    import ray

    from pipeline import cluster

    cluster.connect()
    ray.data.DataContext.get_current().execution_no_progress_timeout_s = 120
    yield
    ray.shutdown()


def write_shard(path: Path, ids: Any, texts: Any, **columns: Any) -> str:
    """Writes a Parquet file with id, text and further columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids, "text": texts, **columns}), path)
    return str(path)

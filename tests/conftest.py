"""Tiny models and tokenizers made on the spot: real families of transformers with random weights."""

import os

# Read when huggingface_hub is imported: a test must not wait for a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

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
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
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


def llama(**changes: Any) -> LlamaConfig:
    """4 blocks, hidden 64, 8 query heads on 2 key/value heads of 8."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
    }
    return LlamaConfig(**{**sizes, **changes})


def qwen3() -> Qwen3Config:
    """Heads of 16, so that heads x head width (128) is not the hidden size (64)."""
    return Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=512,
        max_position_embeddings=1024,
    )


def gpt2() -> GPT2Config:
    """Learned absolute positions, 128 of them."""
    return GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=512, n_positions=128)


CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {"llama": llama, "qwen3": qwen3, "gpt2": gpt2}


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

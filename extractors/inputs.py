"""Prompt + texts -> token ids, and token ids -> batches.

The one rule for what a user's text may become: plain pieces of the vocabulary. A text that spells a control token
("</s>") is cut into pieces like any other; only the tokenizer's own start tokens are control tokens.
"""

import dataclasses
import functools
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from extractors.errors import MethodError, TextError
from extractors.prompts import PLACEHOLDER, REVERSED, fill_in, normalized, pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_TEXT_TOKENS = 8
# What texts begin with.
_USUAL_STARTS = ("A", "a", "1", "É", "я", "的", "ا")

# A code point that is no character; control tokens are renamed with it.
_UNREACHABLE = "\U0010ffff"
# How a template's placeholder is spelled for the tokenizer: as no text can, since texts with it are refused.
_MARK = f"{_UNREACHABLE}{PLACEHOLDER}"
_BRACKETED = re.compile(r"^(<.*>|\[.*\]|\{.*\})$", re.DOTALL)
# What a byte that no piece holds becomes, in vocabularies that fall back to bytes.
_BYTE = re.compile(r"^<0x[0-9A-Fa-f]{2}>$")


@dataclasses.dataclass(frozen=True)
class TokenIds:
    """One filled-in prompt.

    Attributes:
        ids: int32 [N], start tokens included; never padded.
        text_begin: index of the first token that holds a character of the user's text, in the last slot.
        text_end: one past the last such token.
        truncated: whether some of the user's text was cut off.
        placeholder: index of the template's placeholder, whose id is of no account; -1 when it has none.
    """

    ids: np.ndarray
    text_begin: int
    text_end: int
    truncated: bool
    placeholder: int = -1

    def begins_with(self, prefix: np.ndarray) -> bool:
        """Whether the ids begin with ``prefix``, and neither text nor placeholder does before its end.

        They do where the template's last character and the text's first make one token, as unknown ones may.
        """
        own = self.text_begin if self.placeholder < 0 else min(self.text_begin, self.placeholder)
        return own >= len(prefix) and np.array_equal(self.ids[: len(prefix)], prefix)

    def after(self, prefix: int) -> "TokenIds":
        """Returns this without its first ``prefix`` tokens, which hold neither text nor placeholder."""
        placeholder = self.placeholder - prefix if self.placeholder >= 0 else -1
        begin, end = self.text_begin - prefix, self.text_end - prefix
        return TokenIds(self.ids[prefix:], begin, end, self.truncated, placeholder)


@dataclasses.dataclass(frozen=True)
class PromptTokenizer:
    """Tokenizes texts in a method's prompts. Plain data, so that it can be sent to any worker.

    Attributes:
        spec: the vocabulary as tokenizers' JSON, in which every control token is marked as such.
        start_ids: the tokens that the model's tokenizer puts before a text (such as <s>); what it would put after a
            text is left out, since the token after the template's last one would be read instead.
        control_ids: ids that a text can never contain.
        vocabulary: how many ids the model has embeddings for.
        templates: the prompts, one after another.
        max_length: in tokens, start tokens and template included.
        normalizes: whether sentences are prepared as the prompt papers' code does; see ``prompts.normalized``.
        mark_id: the id under which the tokenizer reports a placeholder; None where no template has one.
    """

    spec: str
    start_ids: tuple[int, ...]
    control_ids: frozenset[int]
    vocabulary: int
    templates: tuple[str, ...]
    max_length: int
    normalizes: bool = False
    mark_id: int | None = None

    def tokenize(self, texts: Sequence[str]) -> list[list[TokenIds | TextError]]:
        """Returns, for each text, its token ids in each template, or the error that keeps this text out.

        Raises nothing for a bad text: its neighbours must not suffer.
        """
        faults = [_fault(text) for text in texts]
        # The backend refuses a whole batch for one bad text.
        sound = ["" if fault else text for text, fault in zip(texts, faults, strict=True)]
        by_template = [self._in_template(template, sound) for template in self.templates]
        return [[fault] * len(row) if fault else list(row) for fault, *row in zip(faults, *by_template, strict=True)]

    def prefix(self, template: str) -> np.ndarray:
        """Returns the ids, int32 [P], that nearly every text in this template begins with.

        The template's last token before the text is among them unless letters and digits would merge with it.
        """
        before = pieces(template)[0].split(PLACEHOLDER)[0]
        ids = self._backend.encode(before, add_special_tokens=False).ids
        starts = self._backend.encode_batch([before + start for start in _USUAL_STARTS], add_special_tokens=False)
        merges = any(start.ids[: len(ids)] != ids for start in starts)
        return np.array([*self.start_ids, *(ids[:-1] if merges else ids)], dtype=np.int32)

    def _in_template(self, template: str, texts: Sequence[str]) -> list[TokenIds | TextError]:
        around = pieces(template.replace(PLACEHOLDER, _MARK))
        ready = [normalized(text) if self.normalizes else text for text in texts]
        cut = [text[: self._enough_characters] for text in ready]
        filled = [fill_in(template, text) for text in cut]
        encodings = self._backend.encode_batch([text.join(around) for text in filled], add_special_tokens=False)
        rows = []
        for whole, some, text, encoding in zip(ready, cut, filled, encodings, strict=True):
            row = self._one(template, around, text, encoding)
            is_cut = len(some) < len(whole) and isinstance(row, TokenIds)
            rows.append(dataclasses.replace(row, truncated=True) if is_cut else row)  # type: ignore[type-var]
        return rows

    def _one(self, template: str, around: list[str], text: str, encoding: Encoding) -> TokenIds | TextError:
        truncated = len(encoding) > self._room
        try:
            if truncated:
                text, encoding = self._fit(template, around, text, encoding)
            row = self._row(around, text, encoding, truncated)
            self._check(row, PLACEHOLDER in template)
        except TextError as problem:
            return problem
        return row

    @property
    def _room(self) -> int:
        return self.max_length - len(self.start_ids)

    def _fit(self, template: str, around: list[str], text: str, encoding: Encoding) -> tuple[str, Encoding]:
        """Cuts the text, the same in every slot and never the template, until all fits; of a reversed text, the front.

        Raises:
            TextError: not even one token fits.
        """
        from_front = REVERSED in template
        if around == ["", ""]:
            encoding.truncate(self._room, direction="left" if from_front else "right")
            return text, encoding
        first = len(around[0])
        begin, end = _span(encoding, first, first + len(text))
        excess = -(-(len(encoding) - self._room) // (len(around) - 1))
        offsets = [(start - first, stop - first) for start, stop in encoding.offsets]
        if from_front:
            shorter = (text[offsets[token][0] :] for token in range(begin + max(excess, 1), end))
        else:
            shorter = (text[: offsets[token][1]] for token in range(end - excess - 1, begin - 1, -1))
        for part in shorter:
            # Where the text meets the template its tokens may merge in another way, so the whole is encoded again.
            encoding = self._backend.encode(part.join(around), add_special_tokens=False)
            if len(encoding) <= self._room:
                return part, encoding
        raise TextError(
            "no-room",
            f"no room for the text: the prompt {template!r} alone has about {len(encoding)} tokens and "
            f"the maximum length is {self.max_length}; give a larger --max-length",
        )

    def _row(self, around: list[str], text: str, encoding: Encoding, truncated: bool) -> TokenIds:
        shift = len(self.start_ids)
        # What stands before the last slot: every piece but the last, with the text between them.
        before = len(text.join(around[:-1]))
        begin, end = _span(encoding, before, before + len(text))
        ids = np.array([*self.start_ids, *encoding.ids], dtype=np.int32)
        placeholder = -1
        if self.mark_id is not None and (marks := np.flatnonzero(ids == self.mark_id)).size:
            placeholder = int(marks[0])
            # An id that the model knows, of no account: its embedding is replaced.
            ids[placeholder] = ids[placeholder + 1 if placeholder + 1 < len(ids) else placeholder - 1]
        return TokenIds(ids, begin + shift, end + shift, truncated, placeholder)

    def _check(self, row: TokenIds, has_placeholder: bool) -> None:
        own = row.ids[len(self.start_ids) :]
        if not own.size or row.text_end <= row.text_begin:
            raise TextError("no-tokens", "the tokenizer makes no token of this text")
        if own.max() >= self.vocabulary:
            raise TextError(
                "beyond-embeddings", f"token {int(own.max())} is beyond the model's {self.vocabulary} embeddings"
            )
        control = self.control_ids.intersection(own.tolist())
        if (row.placeholder >= 0) != has_placeholder:
            raise TextError("control-token", "the text was read as a placeholder")
        if control:
            raise TextError("control-token", f"the text was read as control tokens {sorted(control)}")

    @functools.cached_property
    def _enough_characters(self) -> int:
        # What lies beyond the longest token of the vocabulary, or of any usual one, times max_length cannot be among
        # the first max_length tokens. Some tokenizers take more than linear time on a long run without a break.
        return max(100_000, self.max_length * max(256, max(map(len, self._backend.get_vocab()))))

    @property
    def _backend(self) -> Tokenizer:
        return _tokenizer(self.spec)


@functools.lru_cache(maxsize=2)
def _tokenizer(spec: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(spec)
    tokenizer.encode_special_tokens = True
    return tokenizer


def _span(encoding: Encoding, begin: int, end: int) -> tuple[int, int]:
    """Returns the range of tokens that hold a character of [begin, end); (0, 0) when none does."""
    inside = [i for i, (start, stop) in enumerate(encoding.offsets) if start < end and stop > begin]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def build_tokenizer(
    tokenizer: "PreTrainedTokenizerBase",
    templates: tuple[str, ...],
    vocabulary: int,
    max_length: int,
    limit: int | None = None,
    normalizes: bool = False,
) -> PromptTokenizer:
    """Returns the tokenizer of a method's prompts.

    Args:
        vocabulary: how many ids the model has embeddings for.
        max_length: in tokens.
        limit: the longest that the model can take, for the message.
        normalizes: whether sentences are prepared as the prompt papers' code does.

    Raises:
        MethodError: a template leaves no room for ``MIN_TEXT_TOKENS`` tokens of text, or the tokenizer begins every
            text with an id that the model does not know.
    """
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    control = _disarm_control_tokens(spec, set(tokenizer.all_special_tokens), vocabulary)
    has_placeholder = any(PLACEHOLDER in template for template in templates)
    if has_placeholder:
        _add_mark(spec)
    text = json.dumps(spec, ensure_ascii=False, sort_keys=True)
    mark_id = _tokenizer(text).token_to_id(_MARK) if has_placeholder else None
    built = PromptTokenizer(
        spec=text,
        start_ids=_start_ids(tokenizer),
        control_ids=frozenset(control if mark_id is None else [*control, mark_id]),
        vocabulary=vocabulary,
        templates=templates,
        max_length=max_length,
        normalizes=normalizes,
        mark_id=mark_id,
    )
    unknown = [one for one in built.start_ids if one >= vocabulary]
    if unknown:
        raise MethodError(
            f"the model's tokenizer begins every text with token {unknown[0]}, beyond the model's {vocabulary} "
            "embeddings; it belongs to another model"
        )
    for template in templates:
        alone = "".join(pieces(template.replace(PLACEHOLDER, _MARK)))
        length = len(built._backend.encode(alone, add_special_tokens=False))
        if len(built.start_ids) + length + MIN_TEXT_TOKENS > max_length:
            raise MethodError(
                f"max length {max_length} leaves no room for text: the prompt {template!r} alone has {length} tokens; "
                f"give a --max-length of at least {len(built.start_ids) + length + MIN_TEXT_TOKENS}"
                + (f" (this model takes at most {limit})" if limit is not None else "")
            )
    return built


def _add_mark(spec: dict[str, Any]) -> None:
    """Adds the placeholder's spelling as a token of its own, around which nothing merges."""
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    taken = [token["id"] for token in spec["added_tokens"]]
    vocab = spec["model"]["vocab"]
    number = max([len(vocab) - 1, *taken]) + 1
    spec["added_tokens"].append({"id": number, "content": _MARK, **options})


def _start_ids(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """The ids that the tokenizer puts before a text, found by tokenizing something that it has a token for."""
    for text in ("a", "1", "一", *tokenizer.get_vocab()):
        probe = tokenizer(text).encodings[0]
        if 0 in probe.sequence_ids:
            return tuple(probe.ids[: probe.sequence_ids.index(0)])
    raise MethodError("the model's tokenizer makes no token of any text")


def _disarm_control_tokens(spec: dict[str, Any], special: set[str], vocabulary: int) -> list[int]:
    """Makes all control tokens unreachable from text, in place, and returns their ids.

    A control token is what the tokenizer calls special, what the model has no embedding for, and any added token in
    brackets ("<think>", "[INST]", "</s>"), since files disagree on calling these special. Other added tokens, such as
    runs of white space, are ordinary text. A control token keeps its id under a name that no text has, so that its
    spelling is cut into pieces like any other. The unknown token keeps its name: it stands for text that the
    vocabulary cannot spell.

    Args:
        special: the spellings of the tokenizer's special tokens.
    """
    model = spec["model"]
    is_table = isinstance(model["vocab"], dict)
    pieces = list(model["vocab"]) if is_table else [piece for piece, _ in model["vocab"]]
    unknown = pieces[model["unk_id"]] if isinstance(model.get("unk_id"), int) else model.get("unk_token")
    if model.get("byte_fallback"):
        # Some files list the byte pieces as added tokens too, which would make one of the spelling "<0x41>". In the
        # vocabulary they must keep their names, or all that is spelled in bytes turns into the unknown token.
        known = set(pieces)
        spec["added_tokens"] = [
            one for one in spec["added_tokens"] if not (_BYTE.match(one["content"]) and one["content"] in known)
        ]
    renamed: dict[str, str] = {}
    for token in spec["added_tokens"]:
        spelling = token["content"]
        is_control = token["special"] or spelling in special or token["id"] >= vocabulary or _BRACKETED.match(spelling)
        if is_control and spelling != unknown:
            renamed[spelling] = token["content"] = f"{_UNREACHABLE}{spelling}"
            token["special"] = True
    if is_table:
        model["vocab"] = {renamed.get(piece, piece): number for piece, number in model["vocab"].items()}
    else:
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        # Merges derived from a piece list can rebuild "</s>" out of "</" and "s>".
        model["merges"] = [merge for merge in model["merges"] if _joined(merge) not in renamed]
    spec["truncation"] = spec["padding"] = spec["post_processor"] = None
    return [token["id"] for token in spec["added_tokens"] if token["content"].startswith(_UNREACHABLE)]


def _joined(merge: str | list[str]) -> str:
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _fault(text: str) -> TextError | None:
    if not isinstance(text, str):
        return TextError("not-text", f"a text must be a string, and is {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        return TextError("invalid-unicode", f"not valid Unicode at character {problem.start}: {problem.reason}")
    return TextError("blank-text", "the text has no visible character") if is_blank(text) else None


def is_blank(text: str) -> bool:
    """Whether a text has no visible character: white space, control and format characters (U+200B, U+FEFF) only."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf", "Zs", "Zl", "Zp") for char in text)

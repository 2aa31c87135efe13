"""What a user can get wrong about a model, a method or a text.

Each message says what was given, what is allowed and the cure.
"""

import difflib
from collections.abc import Iterable


class ExtractorError(ValueError):
    """Base of the errors below; its message is written for the user."""


class ModelError(ExtractorError):
    """The model cannot be found, loaded whole, or read in the way that was asked."""


class MethodError(ExtractorError):
    """The method's description is not valid, or does not fit the model."""


class TextError(ExtractorError):
    """A text that cannot be embedded.

    Attributes:
        code: the kind of fault in one hyphenated word, for counting.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RowTooLarge(ExtractorError):
    """A text for which the device's memory does not suffice, though it is run alone.

    Attributes:
        row: its position.
    """

    def __init__(self, row: int, tokens: int) -> None:
        super().__init__(
            f"the device has not enough memory for this text of {tokens} tokens alone; cut it with a "
            "smaller --max-length, or use a larger device"
        )
        self.row = row


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for the allowed name closest to ``name``, or "" when none is close."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""

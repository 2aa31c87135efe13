"""Errors a user can cause, by what the command's exit status says of them."""


class UsageError(Exception):
    """Wrong use: a bad option, input or output folder. Exit status 2, nothing was changed."""


class RunError(Exception):
    """The run could not be finished. Exit status 1; what was committed stays."""


class RowKeptOut(ValueError):
    """A row, or a whole file, that cannot be used, with a short code for counting."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

"""isogloss methods: the table of methods, resolved for a model if one is given."""

from collections.abc import Sequence
from typing import Any

from jobs.cli import OK, run_command, run_process
from pipeline.config import MethodsConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("methods", MethodsConfig, argv, _work, lists=True)


def _work(config: MethodsConfig) -> tuple[dict[str, Any], str, int]:
    from extractors.listing import as_text, list_methods

    listed = list_methods(config.model, config.revision)
    return {"model": config.model, "methods": listed}, as_text(listed), OK


if __name__ == "__main__":
    run_process(main)

"""Turns pydantic's complaints into one message a user can act on."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from extractors.errors import nearest

Model = TypeVar("Model", bound=BaseModel)


def parse(
    model: type[Model],
    data: Mapping[str, Any],
    what: str,
    error: type[Exception],
    spell: Callable[[str], str] = str,
) -> Model:
    """Validates ``data`` as ``model``.

    Args:
        what: the thing described, for the message ("method file x.yaml"); "" when it is plain.
        error: the exception raised with the message.
        spell: how a field's name is written where the user wrote it (``--id-column`` for ``id_column``).

    Raises:
        error: naming each bad value, and for an unknown field the nearest valid one.
    """
    try:
        return model.model_validate(dict(data))
    except ValidationError as problems:
        sentences = "; ".join(_sentence(problem, model, spell) for problem in problems.errors())
        raise error(f"{what}: {sentences}" if what else sentences) from None


def _sentence(problem: Any, model: type[BaseModel], spell: Callable[[str], str]) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else ""
    known = [spell(name) for name in model.model_fields]
    if problem["type"] == "extra_forbidden":
        hint = nearest(spell(field), known)
        return f"unknown {spell(field)!r}{hint}; allowed: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{spell(field)} is required"
    reason = problem["msg"].removeprefix("Value error, ")
    if not field:
        return reason
    given = problem["input"]
    if problem["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        hint = nearest(given, allowed) if isinstance(given, str) else ""
        return f"{spell(field)} = {given!r} is not known{hint}; allowed: {', '.join(map(repr, allowed))}"
    return f"{spell(field)} = {given!r}: {reason[0].lower()}{reason[1:]}"

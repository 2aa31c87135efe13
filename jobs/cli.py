"""The command line: options from the config's fields, YAML underneath, one message and an exit status for errors."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import yaml
from pydantic import BaseModel

from extractors.errors import ExtractorError, nearest
from extractors.validated import parse
from pipeline.errors import RunError, UsageError
from pipeline.storage import STORAGE_ERRORS

OK, FAILED, WRONG_USE, TOO_MANY_QUARANTINED = 0, 1, 2, 4

COMMANDS = {
    "methods": "lists every method: prompt, what is read, layers, pooling, width, paper",
    "fit": "parallel corpus -> language subspace, to be removed by encode --subspace",
    "encode": "Parquet shards -> Parquet vectors",
    "index": "vectors -> FAISS index",
    "search": "queries -> hits, with the encoder recorded in the index",
    "evaluate": "scores a method on tasks",
    "sweep": "scores over layers, start layers, ranks, groups or languages, with the curve and the best as a recipe",
    "demo": "the whole chain on real text, small enough for a laptop",
}

RECIPES = Path(__file__).parent / "recipes"

# Where results go in a process of their own; see run_process.
_results: TextIO | None = None

Config = TypeVar("Config", bound=BaseModel)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``isogloss COMMAND …``, which is the module ``jobs.COMMAND``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    listed = "\n".join(f"  {name:<9} {what}" for name, what in COMMANDS.items())
    usage = f"usage: isogloss COMMAND [options]   (isogloss COMMAND --help lists them)\n\n{listed}"
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage, file=_result_stream())
        return OK if arguments else WRONG_USE
    command = arguments[0]
    if command not in COMMANDS:
        print(f"isogloss: unknown command {command!r}{nearest(command, COMMANDS)}\n\n{usage}", file=sys.stderr)
        return WRONG_USE
    return importlib.import_module(f"jobs.{command}").main(arguments[1:])


def run_command(
    command: str,
    model: type[Config],
    argv: Sequence[str] | None,
    work: Callable[[Config], tuple[dict[str, Any], str, int]],
    lists: bool = False,
) -> int:
    """Parses options, does the work, prints its result and returns the exit status.

    Args:
        work: config -> (result for --json, text for people, exit status). It imports what it needs: torch and
            transformers take seconds, which help and refused options should not.
        lists: whether the text is the result itself and not a summary of what was written to files.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        config, as_json = parse_options(command, model, arguments)
        result, summary, status = work(config)
    except (UsageError, ExtractorError) as problem:
        print(f"isogloss {command}: {problem}", file=sys.stderr)
        return WRONG_USE
    except (RunError, *STORAGE_ERRORS) as problem:
        print(f"isogloss {command}: {problem}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"isogloss {command}: interrupted; the same command continues", file=sys.stderr)
        return 130
    # What a command lists is its result and goes to stdout, unless that is kept for the JSON.
    print(summary, file=_result_stream() if lists and not as_json else sys.stderr, flush=True)
    if as_json:
        print(json.dumps(result, ensure_ascii=False, default=str), file=_result_stream(), flush=True)
    return status


def _result_stream() -> TextIO:
    return _results or sys.stdout


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: Any = None) -> None:
        super().print_help(file or _result_stream())

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse_options(command: str, model: type[Config], argv: Sequence[str]) -> tuple[Config, bool]:
    """Returns the validated config and whether --json was given.

    Raises:
        UsageError: an unknown option or key (the nearest is named) or a value that is not allowed.
    """
    parser = _parser(command, model)
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        options = [f"--{_kebab(name)}" for name in (*model.model_fields, "config", "json")]
        raise UsageError(f"unknown option {unknown[0]}{nearest(unknown[0].split('=')[0], options)}; see --help")
    given = {key: value for key, value in vars(known).items() if value is not None}
    file = given.pop("config", None)
    in_file = _read_yaml(file) if file else {}
    as_json = bool(given.pop("json", in_file.pop("json", False)))
    if file:
        # Checked by itself too, so that a misspelt key is reported as the file spells it.
        unknown_keys = [key for key in in_file if key not in model.model_fields]
        if unknown_keys:
            raise UsageError(
                f"{file}: unknown key {unknown_keys[0]!r}{nearest(str(unknown_keys[0]), model.model_fields)}; "
                f"allowed: {', '.join(model.model_fields)}"
            )
    merged = {**in_file, **given}
    return parse(model, merged, "", UsageError, lambda name: f"--{_kebab(name)}"), as_json


def _read_yaml(file: str) -> dict[str, Any]:
    recipe = RECIPES / f"{file}.yaml"
    if recipe.is_file() and not os.path.exists(file):
        file = str(recipe)
    try:
        with open(file, encoding="utf-8") as handle:
            content = yaml.safe_load(handle) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        known = ", ".join(sorted(path.stem for path in RECIPES.glob("*.yaml")))
        raise UsageError(f"--config {file}: {problem}. Give a YAML file, or a recipe: {known}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config {file}: must hold a mapping of options (snake_case) to values")
    return content


def _parser(command: str, model: type[BaseModel]) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"isogloss {command}", description=COMMANDS[command], allow_abbrev=False)
    for name, field in model.model_fields.items():
        text = (field.description or "").replace("%", "%%")
        if not field.is_required() and field.default not in (None, [], False) and "default" not in text:
            text += f" (default: {field.default})"
        if field.annotation is bool:
            parser.add_argument(f"--{_kebab(name)}", action="store_const", const=True, help=text)
        elif str(field.annotation).startswith("list"):
            parser.add_argument(f"--{_kebab(name)}", action="extend", nargs="+", metavar="X", help=text)
        else:
            parser.add_argument(f"--{_kebab(name)}", metavar="X", help=text)
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file with the same options in snake_case, or the name of a recipe"
    )
    parser.add_argument(
        "--json", action="store_const", const=True, help="print the result as one JSON object on stdout"
    )
    return parser


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def run_process(command: Callable[[], int] = main) -> NoReturn:
    """Runs a command as a process of its own and ends it with the command's exit status.

    What libraries print (Ray does so from threads, at any time) goes to stderr, so that stdout holds the result alone.
    """
    global _results
    _results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        status = command()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else FAILED
    if "pipeline.cluster" in sys.modules:
        sys.modules["pipeline.cluster"].disconnect()
    _results.flush()
    sys.stderr.flush()
    # Threads of native libraries may still run, and abort a process that unloads them.
    os._exit(status)


if __name__ == "__main__":
    run_process()

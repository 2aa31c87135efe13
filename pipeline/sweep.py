"""Sweep: the score of a development set over one parameter, with the curve and the best setting as a recipe."""

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import yaml

from extractors.errors import MethodError
from extractors.layers import BackboneShape
from extractors.method import Method
from extractors.methods import load_method
from extractors.plan import plan
from extractors.subspace import Subspace
from pipeline.config import EvaluateConfig, FitConfig, ModelConfig, SweepConfig
from pipeline.errors import UsageError
from pipeline.evaluate import evaluate
from pipeline.figures import curve
from pipeline.fit import fit
from pipeline.parallel import read_parallel
from pipeline.storage import Folder
from pipeline.subspaces import read_subspace


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value, and what is different with it: options of evaluate, which are also the recipe."""

    value: str
    options: dict[str, Any]


def sweep(config: SweepConfig) -> dict[str, Any]:
    """Scores every value, writes sweep.json, sweep.png and recipe.yaml, and returns the result.

    The best value has the highest main score, averaged over the tasks.

    Raises:
        UsageError, ExtractorError: wrong use.
    """
    folder = Folder(config.output)
    settings = _layers(config, folder) if config.over == "layer" else _subspaces(config, folder)
    common = {name: getattr(config, name) for name in ModelConfig.model_fields}
    points = []
    for setting in settings:
        options = {**common, **setting.options}
        output = f"{folder.url}/results/{config.over}-{setting.value}"
        results = evaluate(EvaluateConfig(**options, task=config.task, output=output))
        scores = {result["task"]: result["main_score"] for result in results}
        points.append({"value": setting.value, "mean": sum(scores.values()) / len(scores), "scores": scores})
    best = max(points, key=lambda point: point["mean"])
    chosen = next(setting for setting in settings if setting.value == best["value"])
    recipe = {**_given(config), **chosen.options}
    result = {"over": config.over, "points": points, "best": best["value"], "recipe": recipe}
    lines = {name: [point["scores"][name] for point in points] for name in best["scores"]}
    title = f"{config.method}: best {config.over} {best['value']}"
    folder.publish("sweep.png", curve([point["value"] for point in points], lines, config.over, title))
    folder.publish("recipe.yaml", yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).encode())
    folder.publish("sweep.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    return result


def _given(config: SweepConfig) -> dict[str, Any]:
    """The options that say how texts are encoded, but for those left at their defaults."""
    fields = ModelConfig.model_fields
    values = {name: getattr(config, name) for name in fields}
    return {name: value for name, value in values.items() if name == "method" or value != fields[name].default}


def _layers(config: SweepConfig, folder: Folder) -> list[Setting]:
    """The method with each block alone as what is read, as a method file each."""
    method = load_method(config.method)
    shape = plan(config.model, method, config.revision).shape
    alone = {
        layer: method.model_copy(update={"layers": (layer,), "name": f"{method.name}-{layer}"})
        for layer in range(shape.blocks)
    }
    # Blocks before the method's steering is done cannot be read alone.
    readable = [layer for layer, one in alone.items() if _resolves(one, shape)]
    settings = []
    for layer in _numbers(config, readable):
        name = f"methods/{alone[layer].name}.yaml"
        content = yaml.safe_dump(alone[layer].model_dump(mode="json"), allow_unicode=True)
        folder.publish_if_changed(name, content.encode())
        settings.append(Setting(str(layer), {"method": folder.at(name)}))
    return settings


def _resolves(method: Method, shape: BackboneShape) -> bool:
    try:
        method.resolve(shape)
    except MethodError:
        return False
    return True


def _subspaces(config: SweepConfig, folder: Folder) -> list[Setting]:
    """A subspace a value, all from states that are read once."""
    if not config.input:
        raise UsageError(f"--over {config.over} fits subspaces: give a parallel corpus with --input")
    if config.construction == "lir":
        raise UsageError("--construction lir needs each text's language, which the rows of a task do not have")
    if config.over == "start-layer":
        return list(_start_layers(config, folder))
    return list(reversed(list(_refits(config, folder))))


def _fit_options(config: SweepConfig, folder: Folder, name: str, **changes: Any) -> FitConfig:
    options = {field: getattr(config, field) for field in FitConfig.model_fields if field in SweepConfig.model_fields}
    states = config.states or f"{folder.url}/states"
    paths = {"output": f"{folder.url}/subspaces/{name}.safetensors", "states": states}
    return FitConfig.model_validate({**options, **paths, **changes})


def _start_layers(config: SweepConfig, folder: Folder) -> Iterator[Setting]:
    """A block's basis does not depend on where steering starts: fitted once, from the earliest start on."""
    method = plan(config.model, config.method, config.revision).method
    # What is steered after the last thing read changes nothing; hidden states are read after their block was steered.
    end = method.layers[-1] + (method.read in ("hidden", "block-output"))
    starts = _numbers(config, range(end), range(config.start_layer or 0, end))
    whole = _fit_options(config, folder, "whole", start_layer=min(starts))
    fit(whole)
    fitted = read_subspace(whole.output)
    for start in starts:
        tensors = {name: tensor for name, tensor in fitted.tensors.items() if int(name.split(".")[1]) >= start}
        subspace = Subspace({**fitted.about, "start_layer": start}, tensors)
        name = f"subspaces/start-layer-{start}.safetensors"
        folder.publish(name, subspace.to_bytes())
        yield Setting(str(start), {"subspace": [f"{folder.url}/{name}"]})


def _refits(config: SweepConfig, folder: Folder) -> Iterator[Setting]:
    corpus = read_parallel(config.input, config.languages, config.groups, config.states or f"{folder.url}/states")
    languages, groups = len(corpus.languages), len(corpus.groups)
    # A rank may be anything, but languages - 1 is what they can differ in.
    whole = {"rank": (1, languages - 1), "groups": (1, groups), "languages": (2, languages)}
    least, most = whole[config.over]
    allowed = range(1, _width(config)) if config.over == "rank" else range(least, most + 1)
    # The largest first: it reads the states of all the others.
    for number in sorted(_numbers(config, allowed, _doubling(least, most)), reverse=True):
        part = corpus if config.over == "rank" else corpus.first(**{config.over: number})
        changes = {"rank": number} if config.over == "rank" else {}
        options = _fit_options(config, folder, f"{config.over}-{number}", **changes)
        fit(options, part)
        yield Setting(str(number), {"subspace": [*config.subspace, options.output]})


def _width(config: SweepConfig) -> int:
    planned = plan(config.model, config.method, config.revision)
    return planned.width if config.place == "embedding" else planned.shape.hidden_size


def _doubling(least: int, most: int) -> list[int]:
    powers = (2**i for i in range(most.bit_length()))
    return sorted({*(power for power in powers if least <= power < most), most})


def _numbers(config: SweepConfig, allowed: Collection[int], default: Iterable[int] | None = None) -> list[int]:
    """Returns the values to score, ascending.

    Raises:
        UsageError: a value that is no whole number, or none of those allowed.
    """
    if not config.values:
        return sorted(default if default is not None else allowed)
    numbers = [int(value) if value.lstrip("-").isdigit() else None for value in config.values]
    wrong = [value for value, number in zip(config.values, numbers, strict=True) if number not in allowed]
    if wrong:
        least, most = min(allowed), max(allowed)
        raise UsageError(
            f"--values {', '.join(wrong)}: --over {config.over} takes whole numbers from {least} to {most}"
        )
    return sorted({number for number in numbers if number is not None})

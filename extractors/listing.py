"""The table of methods for people and programs."""

from typing import Any

from extractors.backbone import find_model, skeleton
from extractors.errors import MethodError
from extractors.methods import METHODS
from extractors.plan import vector_width


def list_methods(model: str | None = None, revision: str | None = None) -> list[dict[str, Any]]:
    """Returns every method; with a model also its 0-based blocks and the vectors' width.

    A method that the model's family cannot give has no width, and its notes say why.

    Raises:
        ModelError: the model cannot be found.
    """
    anatomy = skeleton(find_model(model, revision)) if model else None
    rows = []
    for method in METHODS.values():
        layers: Any = method.layers if isinstance(method.layers, str) else list(method.layers)
        prompts, steering = method.steered_templates, method.steering
        width, notes = None, method.notes
        if anatomy is not None:
            try:
                resolved = method.resolve(anatomy.shape)
                layers, steering = list(resolved.layers), resolved.steering
                width = vector_width(anatomy, resolved)
            except MethodError as problem:
                notes = str(problem)
        rows.append(
            {
                "name": method.name,
                "prompts": list(prompts),
                "read": method.read,
                "layers": layers,
                "combine": method.combine,
                "pooling": method.pooling,
                "heads": method.heads,
                "steering": [one.model_dump(mode="json") for one in steering],
                "width": width,
                "forward_passes": len(prompts) + sum(len(one.auxiliary_prompts) for one in steering),
                "paper": method.paper,
                "notes": notes,
            }
        )
    return rows


def as_text(rows: list[dict[str, Any]]) -> str:
    """Returns the table as aligned lines, one method a line, with its prompt on the next."""
    lines = []
    for row in rows:
        layers = row["layers"] if isinstance(row["layers"], str) else _ranges(row["layers"])
        width = "" if row["width"] is None else f"width {row['width']}"
        head = f"{row['name']:<22} {row['read']:<17} blocks {layers:<12} {row['pooling']:<5} {width:<11} {row['paper']}"
        lines.append(head.rstrip())
        lines += [f"    {prompt}" for prompt in row["prompts"] if prompt != "{text}"]
        lines += [f"    steering: {_steering_as_text(one)}" for one in row["steering"]]
        lines += [f"    ({row['notes']})"] if row["notes"] else []
    return "\n".join(lines)


def _steering_as_text(steering: dict[str, Any]) -> str:
    layers = steering["layers"]
    blocks = layers if isinstance(layers, str) else _ranges(layers)
    others = ", ".join(f"{name} {value}" for name, value in steering.items() if name not in ("kind", "layers"))
    return f"{steering['kind']} in blocks {blocks}, {others}"


def _ranges(layers: list[int]) -> str:
    """Writes [26, 27, 29, 30, 31] as "26-27,29-31"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)

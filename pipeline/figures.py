"""Pictures as PNG bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot


def bars(groups: Sequence[str], series: Mapping[str, Sequence[float]], axis: str, title: str) -> bytes:
    """Draws a bar a series in each group."""
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        positions = np.arange(len(groups)) + (place - (len(series) - 1) / 2) * width
        axes.bar(positions, values, width, label=name)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(axis)
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=len(series))
    return _png(figure)


def curve(values: Sequence[str], scores: Mapping[str, Sequence[float]], over: str, title: str) -> bytes:
    """Draws one line a task: scores by value."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, line in scores.items():
        axes.plot(range(len(values)), line, marker="o", label=name)
    axes.set_xticks(range(len(values)), values)
    axes.set_xlabel(over)
    axes.set_ylabel("main score")
    axes.set_title(title)
    axes.legend()
    return _png(figure)


def scatter(panels: Mapping[str, np.ndarray], labels: Sequence[str]) -> bytes:
    """Draws points [N, 2] a panel, coloured by label."""
    names = list(dict.fromkeys(labels))
    few = len(names) <= 20
    colours = pyplot.get_cmap("tab20" if few else "gist_rainbow")(np.linspace(0, 1, 20 if few else len(names)))
    figure, all_axes = pyplot.subplots(
        1, len(panels), figsize=(6.5 * len(panels), 6), layout="constrained", squeeze=False
    )
    for axes, (title, points_N2) in zip(all_axes[0], panels.items(), strict=True):
        for name, colour in zip(names, colours, strict=False):
            chosen = points_N2[[label == name for label in labels]]
            axes.scatter(chosen[:, 0], chosen[:, 1], s=6, color=colour, label=name)
        axes.set_title(title)
        axes.set_xticks([])
        axes.set_yticks([])
    handles, shown = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, shown, loc="outside lower center", ncols=10, markerscale=2, fontsize="small")
    return _png(figure)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()

"""``gnomon run``: a person's own network and images, and what they see of the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from gnomon.guarantees.focusbranch.method import FocusBranch, L0Result, row
from gnomon.guarantees.focusbranch.network import Network, load_network
from gnomon.guarantees.focusbranch.study.contenders import CONTENDERS
from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BESIDE = ("level 1", "calzone", "top-t coverd", "hull")
SHOWN = 6  # images in the picture


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


class Run(Inputs):
    """What a person gives."""

    model: Annotated[Path, AfterValidator(_file)] = Field(
        description="ONNX file; scores of images in [0, 1], normalisation inside"
    )
    images: Annotated[Path, AfterValidator(_file)] = Field(
        description="CSV without a header: label, then the pixels (channel by channel) of an image a row"
    )
    t: int = Field(2, ge=0, description="most pixels that may change")
    timeout: float = Field(60.0, gt=0, description="seconds for an image")
    pixels: Literal["auto", "unit", "byte"] = Field(
        "auto", description="values of pixels: unit 0..1, byte 0..255, auto byte where one is above 1"
    )
    first: int = Field(0, ge=0, description="look at the first so many images alone (0: at all)")
    strategy: Literal["auto", "calzone", "levels", "root"] = Field(
        "auto", description="where to start and how to branch"
    )
    samples: int = Field(64, ge=1, description="most sampled nodes for each size and level")


@dataclass
class Given:
    """What was read."""

    network: Network
    images: np.ndarray
    labels: np.ndarray


def read(inputs: Run) -> Given:
    """The network, and the images as it takes them.

    Raises
    ------
    ValueError
        For a table that is not numbers, another number of pixels, labels out of range, values outside the range.
    """
    network = load_network(inputs.model)
    try:
        table = np.loadtxt(inputs.images, delimiter=",", dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise ValueError(f"images: {inputs.images.name} is no table of numbers without a header: {error}") from error
    want = int(np.prod(network.shape))
    if len(table) == 0 or table.shape[1] != want + 1:
        raise ValueError(
            f"images: {inputs.images.name} has {table.shape[1] if len(table) else 0} columns; expected a label and {want} pixels"
        )
    labels, values = table[:, 0], table[:, 1:]
    if not np.isfinite(table).all() or (labels % 1 != 0).any() or labels.min() < 0 or labels.max() >= network.classes:
        raise ValueError(f"images: labels must be integers in 0..{network.classes - 1} and pixels finite numbers")
    scale = 255.0 if inputs.pixels == "byte" or (inputs.pixels == "auto" and values.max() > 1) else 1.0
    if values.min() < 0 or values.max() > scale:
        raise ValueError(
            f"images: pixels from {values.min():g} to {values.max():g}; expected 0..{scale:g} (see --pixels)"
        )
    n = inputs.first or len(table)
    images = (values[:n] / scale).astype(np.float32).reshape(-1, *network.shape)
    return Given(network, images, labels[:n].astype(int))


def verify(inputs: Run, beside: bool) -> Outcome:
    """Every image by FocusBranch; ``beside`` by others too. Interrupted, what was done is shown."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    given = read(inputs)
    names = ["focusbranch", *(BESIDE if beside else ())]
    results: dict[str, list[L0Result]] = {name: [] for name in names}
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), transient=True) as bar:
        task = bar.add_task("", total=len(names) * len(given.images))

        def show(what: str, done: int, of: float) -> None:
            expected = f" of about {of:,.0f}" if np.isfinite(of) else ""
            bar.update(task, description=f"{name}, image {len(results[name]) + 1}: {what}, {done:,}{expected}")

        for name in names:
            options: dict[str, Any] = {"timeout": inputs.timeout, "samples": inputs.samples, "progress": show}
            made = (
                FocusBranch(inputs.t, inputs.strategy, **options)
                if name == "focusbranch"
                else CONTENDERS[name](inputs.t, **options)
            )
            for image, label in zip(given.images, given.labels.tolist(), strict=True):
                bar.update(task, description=f"{name}, image {len(results[name]) + 1}")
                found = made.verify(given.network, image, label)
                results[name].append(found)
                bar.advance(task)
                if found.reason == "interrupted":
                    return Outcome(inputs, given, results)
    return Outcome(inputs, given, results)


def table(given: Given, results: list[L0Result]) -> pd.DataFrame:
    """A row an image."""
    import pandas as pd

    rows = [row(i, int(label), image, found) for i, (image, label, found) in
            enumerate(zip(given.images, given.labels, results, strict=False))]  # fmt: skip
    return pd.DataFrame(rows)


def present(outcome: Outcome) -> dict[str, Any]:
    """What was asked, the verdicts, every image, and the others beside."""
    import pandas as pd

    given, inputs = outcome.problem, outcome.inputs
    own = table(given, outcome.result)
    done = "" if len(own) == len(given.images) else f"; interrupted after {len(own)}"
    counts = ", ".join(f"{n} {status}" for status, n in own["status"].value_counts().items())
    shown: dict[str, Any] = {
        "question": f"{len(given.images)} images of {given.network.pixels} pixels x {given.network.channels}: can changing at most "
        f"{inputs.t} change the label?{done}",
        "verdicts": counts,
        "images": own,
    }
    if len(outcome.results) > 1:
        rows = []
        for name, results in outcome.results.items():
            found = table(given, results)
            rows.append({"verifier": name, **{s: int((found["status"] == s).sum()) for s in ("verified", "falsified", "timeout", "unknown")},
                         "bound calls": int(found["bound calls"].sum()), "seconds": float(found["seconds"].sum())})  # fmt: skip
        shown["beside"] = pd.DataFrame(rows)
    return shown


def picture(outcome: Outcome) -> Figure:
    """Images and what falsifies them; where nothing does, the first images with their verdict."""
    from matplotlib.figure import Figure

    given = outcome.problem
    broken = [i for i, r in enumerate(outcome.result) if r.status == "falsified"]
    chosen = (broken or list(range(len(outcome.result))))[:SHOWN]
    figure = Figure(figsize=(2 * max(len(chosen), 2), 4.4), layout="constrained")
    axes = figure.subplots(2, max(len(chosen), 1), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for column, i in enumerate(chosen):
        found = outcome.result[i]
        axes[0, column].imshow(_picture(given.images[i]), cmap="gray", vmin=0, vmax=1)
        axes[0, column].set_title(f"image {i}, label {given.labels[i]}")
        if found.adversarial is not None:
            axes[1, column].imshow(_picture(found.adversarial), cmap="gray", vmin=0, vmax=1)
        axes[1, column].set_title(found.status)
    return figure


def _picture(image: np.ndarray) -> np.ndarray:
    if image.ndim == 3:
        return image.transpose(1, 2, 0) if image.shape[0] == 3 else image[0]
    side = round(image.size**0.5)
    return image.reshape(side, -1) if side * side == image.size else image[None]


def save(outcome: Outcome, directory: Path) -> None:
    """``results.csv``, and ``adversarial.npz`` with the images that falsify (by their number)."""
    table(outcome.problem, outcome.result).to_csv(directory / "results.csv", index=False)
    arrays: dict[str, Any] = {str(i): r.adversarial for i, r in enumerate(outcome.result) if r.status == "falsified"}
    np.savez(directory / "adversarial.npz", **arrays)

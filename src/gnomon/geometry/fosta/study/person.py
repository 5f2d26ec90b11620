"""``gnomon run fosta``: a person's two tables, or their AnnData."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, model_validator

from gnomon import study
from gnomon.geometry.fosta import cells
from gnomon.geometry.fosta.baselines import ALIGNERS, FORESTED
from gnomon.geometry.fosta.forest import ForestKernel
from gnomon.geometry.fosta.labels import UNLABELLED, encode
from gnomon.geometry.fosta.method import FoSTA
from gnomon.geometry.fosta.metrics import alignment_score, label_transfer
from gnomon.geometry.fosta.splits import standardised

if TYPE_CHECKING:
    import pandas as pd

HELD_BACK = 0.25  # of the second domain's labels, to compare methods on


class Run(study.protocol.Options):
    """Options of ``gnomon run fosta``."""

    a: Path | None = Field(None, description="a table of numbers with a column of labels (.csv)")
    b: Path | None = Field(None, description="another one, of other features; empty labels are filled in")
    label: str | None = Field(None, description="name of the column of labels in both")
    h5ad: Path | None = Field(None, description="single cells (AnnData), in place of two tables")
    batch_key: str = Field("batch", description="column of obs that names the batch")
    label_key: str = Field("cell_type", description="column of obs that names the type; missing values are filled in")
    n_estimators: int = Field(300, ge=1, description="trees of each forest")
    n_components: int = Field(2, ge=1, description="dimensions of the embedding")
    seed: int = Field(0, ge=0, description="seed of the forests")

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Run:
        tables = [self.a, self.b, self.label]
        if (self.h5ad is None) == all(t is None for t in tables) or (self.h5ad is None and None in tables):
            raise ValueError("expected either --a FILE --b FILE --label COLUMN, or --h5ad FILE")
        for path in (self.a, self.b, self.h5ad):
            if path is not None and not path.is_file():
                raise ValueError(f"{path} does not exist; expected a file")
        return self


def read_table(path: Path, label: str) -> tuple[pd.DataFrame, pd.Series]:
    """Numbers and labels of a table."""
    import pandas as pd

    frame = pd.read_csv(path)
    if label not in frame:
        raise ValueError(f"{path} has no column {label!r}; it has {', '.join(map(str, frame.columns))}")
    y, X = frame[label].astype(object), frame.drop(columns=label)
    if words := [str(c) for c in X if not pd.api.types.is_numeric_dtype(X[c])]:
        raise ValueError(f"{path}: expected numbers; the columns {', '.join(words)} hold something else")
    return X, y


def aligned(inputs: Run, beside: bool) -> study.Outcome:
    """Embedding, labels and diagnostics; with ``beside`` a comparison on labels that were held back."""
    found = cells_aligned(inputs) if inputs.h5ad else tables_aligned(inputs)
    results: dict[str, Any] = {"fosta": found}
    if beside:
        results["beside"] = compared(found, inputs)
    return study.Outcome(inputs, None, results)


def tables_aligned(inputs: Run) -> dict[str, Any]:
    """Two tables."""
    import pandas as pd

    assert inputs.a is not None and inputs.b is not None and inputs.label is not None  # noqa: PT018
    (XA, yA), (XB, yB) = (read_table(path, inputs.label) for path in (inputs.a, inputs.b))
    model = FoSTA(inputs.n_estimators, n_components=inputs.n_components, random_state=inputs.seed)
    Z = model.fit_transform(XA.to_numpy(float), XB.to_numpy(float), yA, yB)
    parts, agree = [], {}
    for name, y, found in (("a", yA, model.transfer_labels("b->a")), ("b", yB, model.transfer_labels("a->b"))):
        parts.append(pd.DataFrame({"domain": name, "row": range(len(y)), "given": y.to_numpy(), "label": found.labels,
                                   "share": found.shares.max(1)}))  # fmt: skip
        agree[name] = agreement(parts[-1])
    labels = pd.concat(parts, ignore_index=True)
    return {"embedding": Z, "domain": labels["domain"].to_numpy(), "labels": labels, "coupling": model.coupling_,
            "diagnostics": diagnostics(model, Z, labels, agree), "data": [(XA.to_numpy(float), yA), (XB.to_numpy(float), yB)]}  # fmt: skip


def cells_aligned(inputs: Run) -> dict[str, Any]:
    """Batches of single cells."""
    import anndata
    import pandas as pd

    adata = anndata.read_h5ad(inputs.h5ad)
    model = FoSTA(inputs.n_estimators, n_components=inputs.n_components, random_state=inputs.seed)
    model.fit_anndata(adata, inputs.batch_key, inputs.label_key, overwrite=True)
    Z, batch = np.asarray(adata.obsm["X_fosta"]), adata.obs[inputs.batch_key].astype(str).to_numpy()
    labels = pd.DataFrame({"domain": batch, "row": adata.obs_names, "given": adata.obs[inputs.label_key].astype(object).to_numpy(),
                           "label": adata.obs["X_fosta_label"].to_numpy(), "share": adata.obs["X_fosta_share"].to_numpy()})  # fmt: skip
    agree = {str(b): agreement(rows) for b, rows in labels.groupby("domain")}
    return {"embedding": Z, "domain": batch, "labels": labels, "coupling": None,
            "diagnostics": diagnostics(model, Z, labels, agree), "adata": adata}  # fmt: skip


def agreement(rows: pd.DataFrame) -> float:
    """Share of the given labels of shared classes that the other domain's votes repeat."""
    voted = rows["given"].notna() & rows["label"].notna() & rows["given"].isin(set(rows["label"]))
    return float((rows["given"][voted] == rows["label"][voted]).mean()) if voted.any() else float("nan")


def diagnostics(model: FoSTA, Z: Any, labels: pd.DataFrame, agree: dict[str, float]) -> dict[str, Any]:
    """Figures that need no truth."""
    coupled = [T.sum() for T in model._couplings]
    return {
        "alignment score (1 mixed, 0 apart)": alignment_score(Z, labels["domain"]),
        "steps of the walk": model.t_,
        "coupled mass": float(np.sum(coupled)),
        **{f"given labels of {name} that the others' votes repeat": share for name, share in agree.items()},
    }


def compared(found: dict[str, Any], inputs: Run) -> pd.DataFrame:
    """Every contender with a quarter of the labels held back: 5-NN accuracy on these, and mixing."""
    import pandas as pd

    rng = np.random.default_rng(inputs.seed)
    rows = []
    if "adata" in found:
        batches, known = _held_back_cells(found, inputs, rng)
        for name, correct in cells.CORRECTIONS.items():
            if name in ("scanorama", "BBKNN"):
                continue
            Z = correct(batches)
            accuracy = label_transfer(Z[known], batches.truth[known].astype(str), Z[batches.scored],
                                      batches.truth[batches.scored].astype(str))  # fmt: skip
            rows.append(
                {"contender": name, "held-out labels": accuracy, "alignment": alignment_score(Z, batches.batch)}
            )
        return pd.DataFrame(rows)
    (XA, a), (XB, b) = found["data"]
    both, _ = encode(pd.concat([a, b], ignore_index=True))
    codes = np.where(both == UNLABELLED, np.nan, both.astype(float))
    yA, yB = codes[: len(a)], codes[len(a) :].copy()
    candidates = np.flatnonzero(np.isin(yB, yA[np.isfinite(yA)]))
    hidden = rng.permutation(candidates)[: max(1, round(HELD_BACK * len(candidates)))]
    truth = yB[hidden].copy()
    yB[hidden] = np.nan
    seen = np.isfinite(yA)
    A, B = standardised(XA), standardised(XB)
    grown = [ForestKernel(inputs.n_estimators, random_state=inputs.seed).fit(X, y) for X, y in ((A, yA), (B, yB))]
    for name, align in ALIGNERS.items():
        shared = {"kernels": grown} if name in FORESTED else {}
        Z = align(A, B, yA, yB, n_components=5, random_state=inputs.seed, **shared)
        accuracy = label_transfer(Z[: len(a)][seen], yA[seen], Z[len(a) :][hidden], truth)
        rows.append({"contender": name, "held-out labels": accuracy,
                     "alignment": alignment_score(Z, np.repeat([0, 1], (len(a), len(b))))})  # fmt: skip
    return pd.DataFrame(rows)


def _held_back_cells(found: dict[str, Any], inputs: Run, rng: np.random.Generator) -> tuple[cells.Batches, Any]:
    from scipy import sparse

    adata = found["adata"]
    X = adata.X.toarray() if sparse.issparse(adata.X) else np.asarray(adata.X)
    truth = found["labels"]["given"].to_numpy()
    known = found["labels"]["given"].notna().to_numpy()
    hidden = np.zeros(len(X), dtype=bool)
    hidden[rng.permutation(np.flatnonzero(known))[: max(1, round(HELD_BACK * known.sum()))]] = True
    _, batch = np.unique(found["domain"], return_inverse=True)
    given = cells.hide(truth, hidden | ~known)
    return cells.Batches(X.astype(float), batch, given, truth, hidden, inputs.seed), known & ~hidden


def shown(outcome: study.Outcome) -> dict[str, Any]:
    """Diagnostics, a summary of the transferred labels, and the least certain rows."""
    import pandas as pd

    found = outcome.results["fosta"]
    labels = found["labels"]
    filled = labels[labels["given"].isna()]
    summary = (
        filled.groupby(["domain", "label"], dropna=False)["share"].agg(rows="size", mean_share="mean").reset_index()
    )
    tables = {
        "alignment": pd.DataFrame(
            {"diagnostic": list(found["diagnostics"]), "value": list(found["diagnostics"].values())}
        ),
        "labels filled in": summary,
        "least certain rows": filled.sort_values("share").head(10),
    }
    return tables | ({"beside, on labels held back": outcome.results["beside"]} if "beside" in outcome.results else {})


def picture(outcome: study.Outcome) -> Any:
    """The first two dimensions, by domain and by label."""
    from matplotlib import pyplot as plt

    found = outcome.results["fosta"]
    Z, labels = found["embedding"], found["labels"]
    Z = Z if Z.shape[1] > 1 else np.column_stack([Z, np.zeros(len(Z))])
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.5))
    final = labels["given"].where(labels["given"].notna(), labels["label"]).astype(str)
    for axis, groups, title in ((axes[0], labels["domain"].astype(str), "domain"), (axes[1], final, "label")):
        for name in sorted(groups.unique()):
            axis.plot(*Z[(groups == name).to_numpy(), :2].T, ".", markersize=3, label=name)
        axis.set(title=title, xticks=[], yticks=[])
        axis.legend(fontsize=7, markerscale=3)
    figure.tight_layout()
    return figure


def saved(outcome: study.Outcome, directory: Path) -> None:
    """``labels.csv`` (with the embedding), ``coupling.npz`` or ``aligned.h5ad``."""
    from scipy import sparse

    found = outcome.results["fosta"]
    table = found["labels"].copy()
    for k in range(found["embedding"].shape[1]):
        table[f"z{k + 1}"] = found["embedding"][:, k]
    table.to_csv(directory / "labels.csv", index=False)
    if found["coupling"] is not None:
        sparse.save_npz(directory / "coupling.npz", found["coupling"])
    if "adata" in found:
        adata = found["adata"]
        adata.obs["X_fosta_label"] = adata.obs["X_fosta_label"].astype("category")
        adata.write_h5ad(directory / "aligned.h5ad")

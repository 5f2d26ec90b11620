"""What must come out."""

from __future__ import annotations

from typing import Any

from gnomon import study


def six_cells(tables: dict[str, Any]) -> tuple[bool, str]:
    """Whether all the cells were run of which five have to pass."""
    found = len(tables.get("Correspondence", ()))
    return found == 6, f"{found} of 6 cells were run"


CLAIMS = [
    study.better("transfer", "fosta", ["MALI", "Euclidean"], on={"split": "noise"}, each=["table"], table="Splits",
                 id="noise-transfer", text="with noise features, labels transfer better than with Euclidean semantics, on every table",
                 paper="Robust semantic alignment under weakly task-related features; improved label transfer"),
    study.always("room", share=5 / 6, table="Correspondence", when=six_cells, id="correspondence",
                 text="FOSCTTM is the lowest, or within 0.005 of it, in at least 5 of 6 cells (3 tables, noise and halves)",
                 paper="Improved correspondence recovery"),
    study.better("transfer", "Euclidean", "fosta", on={"split": "random"}, each=["table"], table="Splits", report=True,
                 id="halves", text="on halves of clean features Euclidean semantics may transfer better: by how much"),
    study.correlates("multiple", "advantage", at_least=0.8, each=["table"], table="Advantage", id="advantage-grows",
                     text="the advantage grows with the number of noise features (rank correlation above 0.8)",
                     paper="The benefit lies where features are weakly related to the task"),
    study.better("transfer", "fosta", "random coupling", by=0.2, on={"split": "noise"}, each=["table"], table="Splits",
                 id="coupling-matters", text="with rows coupled at random label transfer falls by more than 0.2"),
    study.between("foscttm", "random coupling", 0.4, 0.6, on={"split": "noise"}, each=["table"], table="Splits",
                  id="random-partners", text="and correspondence is that of chance (FOSCTTM about 0.5)"),
    study.better("transfer", "fosta", "no prior", each=["table"], table="Priors", id="prior-correction",
                 text="with one class thinned to a fifth in B, division by priors gains label transfer"),
    study.estimate("drop", at_most=0.1, each=["table"], table="Drops", id="scarce-labels",
                   text="from 20 % to 80 % of B's labels masked, label transfer drops by less than 0.1"),
    study.better("aggregate", "fosta", "uncorrected", by=0.1, table="SingleCell", id="cells-aggregate",
                 text="the integration score is at least 0.1 above no correction",
                 paper="Improved batch correction and biological conservation on single-cell data"),
    study.better("aggregate", "fosta", "harmony", table="SingleCell", id="cells-harmony",
                 text="and not below harmonypy's"),
    study.better("biology", "fosta", "harmony", by=-0.02, table="SingleCell", id="cells-biology",
                 text="its biology part is not below harmonypy's by more than 0.02"),
    study.at_least("separation", "fosta", 0.0, table="SingleCell", id="cells-absent-type",
                   text="the type that one batch lacks stays separate (silhouette above 0)"),
    study.better("real_mixing", "fosta", ["harmony", "uncorrected"], table="SecondBatch", report=True, id="real-mixing",
                 text="mixing of two laboratories' cells"),
    study.better("agreement", "fosta", ["harmony", "uncorrected"], table="SecondBatch", report=True, id="real-agreement",
                 text="agreement of transferred labels with marker genes"),
    study.better("transfer", "fosta", ["MALI", "Euclidean"], table="Images", report=True, id="images-transfer",
                 text="label transfer from pixels to gradient histograms"),
    study.estimate("ratio", at_most=1.3, on={"solver": "hiref"}, each=["vectors"], table="Excess", id="refinement-cost",
                   text="refined assignments cost at most 1.3 times the optimum at n = 2,000",
                   paper="Near-linear transport by hierarchical refinement"),
    study.estimate("ratio", on={"solver": "hiref random"}, each=["vectors"], table="Excess", report=True,
                   id="random-start", text="cost over the optimum with the official code's random start"),
    study.always("permutation", table="Refinement", id="bijection", text="every solver returns a permutation"),
    study.close("transfer", "fosta", "exact", within=0.01, on={"split": "noise"}, each=["table"], table="Splits",
                id="refinement-transfer", text="label transfer with refinement is within 0.01 of that with exact transport"),
    study.slope("seconds", "hiref", along="n", at_most=1.3, table="Growth", id="refinement-growth",
                text="the time of refinement grows with an exponent of at most 1.3 (n = 1k to 16k)",
                paper="Scales near-linearly"),
    study.slope("seconds", "exact", along="n", at_least=2.0, table="Growth", report=True, id="exact-growth",
                text="the time of exact transport grows with an exponent of about 2 or more (n = 1k to 4k)"),
]  # fmt: skip

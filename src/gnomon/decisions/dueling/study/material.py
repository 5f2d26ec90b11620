"""On what: generated matrices, real ones, and a person's own."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import datasets
from gnomon.decisions.dueling.matrix import PreferenceMatrix

GAP = 0.1
LEAST = 0.01  # gap below which a rival of the best arm is dropped from a real matrix
GENERATED = ("flat", "cyclic", "bradley-terry", "hard")


def generate(kind: str, n: int, seed: int) -> PreferenceMatrix:
    """A generated matrix, drawn from ``seed``."""
    if kind == "bradley-terry":
        return PreferenceMatrix.random_bradley_terry(n, random_state=seed)
    if kind == "hard":
        return PreferenceMatrix.hard_condorcet(n, random_state=seed)
    return {"flat": PreferenceMatrix.flat, "cyclic": PreferenceMatrix.cyclic}[kind](n, GAP, random_state=seed)


def with_winner(matrix: PreferenceMatrix, least: float = LEAST) -> tuple[PreferenceMatrix, list[Any]]:
    """The matrix without the rivals that the best arm does not beat by ``least``, and their names.

    The best arm is the one that beats most others, among equals the one with the highest mean probability.
    """
    beats = (matrix.p > 0.5).sum(axis=1) + matrix.p.mean(axis=1)
    a = int(beats.argmax())
    kept = [j for j in range(matrix.n_arms) if j == a or matrix.p[a, j] - 0.5 >= least]
    return matrix.restricted(kept), [matrix.labels[j] for j in range(matrix.n_arms) if j not in kept]


def bundesliga() -> PreferenceMatrix:
    """16 German football clubs that met 20 times or more, 1963-2008; a draw is half a win. One best club, 42 circles.

    From ``dueling/bundesliga_16.csv`` under ``GNOMON_DATA``.
    """
    with open(datasets.data_file("dueling", "bundesliga_16.csv"), newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row[side] for row in rows for side in "ab"})
    wins, draws = np.zeros((len(names), len(names))), np.zeros((len(names), len(names)))
    for row in rows:
        i, j = names.index(row["a"]), names.index(row["b"])
        wins[i, j], wins[j, i] = float(row["a_wins"]), float(row["b_wins"])
        draws[i, j] = draws[j, i] = float(row["draws"])
    return PreferenceMatrix.from_results(wins, draws, names)


def own(path: Path) -> PreferenceMatrix:
    """A person's matrix: a CSV of N rows of N probabilities, no header."""
    try:
        return PreferenceMatrix(np.loadtxt(path, delimiter=",", ndmin=2))
    except ValueError as error:
        raise ValueError(f"matrix: {path.name}: {error}") from None


# --- classifiers -----------------------------------------------------------------------------------------------------


def contestants() -> dict[str, Any]:
    """24 classifiers and settings of scikit-learn."""
    from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, neighbors, neural_network, tree
    from sklearn.decomposition import PCA
    from sklearn.kernel_approximation import Nystroem
    from sklearn.pipeline import make_pipeline

    logistic = linear_model.LogisticRegression
    forest, extra, nearest = (
        ensemble.RandomForestClassifier,
        ensemble.ExtraTreesClassifier,
        neighbors.KNeighborsClassifier,
    )
    return {
        **{f"logistic, C = {c:g}": logistic(C=c, max_iter=2000) for c in (0.001, 0.01, 0.1, 1, 10)},
        "logistic on 10 components": make_pipeline(PCA(10), logistic(max_iter=2000)),
        "kernel logistic": make_pipeline(Nystroem(gamma=0.01, n_components=100, random_state=0), logistic(C=10, max_iter=2000)),
        "linear discriminant": discriminant_analysis.LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "quadratic discriminant": discriminant_analysis.QuadraticDiscriminantAnalysis(reg_param=0.1),
        "Gaussian naive Bayes": naive_bayes.GaussianNB(),
        "Bernoulli naive Bayes": naive_bayes.BernoulliNB(),
        **{f"{k} nearest": nearest(k) for k in (1, 5, 25)},
        "15 nearest, by distance": nearest(15, weights="distance"),
        "tree of depth 4": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
        "tree": tree.DecisionTreeClassifier(random_state=0),
        "bagged trees": ensemble.BaggingClassifier(n_estimators=20, random_state=0),
        "forest of 20": forest(20, random_state=0),
        "forest of 100": forest(100, random_state=0),
        "extra trees": extra(100, random_state=0),
        "boosted stumps": ensemble.AdaBoostClassifier(n_estimators=50, random_state=0),
        "perceptron of 8": neural_network.MLPClassifier((8,), max_iter=300, random_state=0),
        "perceptron of 64": neural_network.MLPClassifier((64,), max_iter=300, random_state=0),
    }  # fmt: skip


def judged_classifiers() -> tuple[np.ndarray, list[str]]:
    """Probability of the true class on the test items of digits, breast cancer and wine together: (24, items), and names."""
    from sklearn import datasets as carried
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    names = list(contestants())
    blocks = []
    for load in (carried.load_digits, carried.load_breast_cancer, carried.load_wine):
        X, y = load(return_X_y=True)
        X, held, y, truth = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
        block = []
        for model in contestants().values():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = make_pipeline(StandardScaler(), model).fit(X, y)
            block.append(fitted.predict_proba(held)[np.arange(len(truth)), truth])
        blocks.append(np.array(block))
    return np.concatenate(blocks, axis=1), names

"""The aggregators as Flower strategies; the last test runs where Flower is, in an environment of its own.

benchmarks/peers/byzantine says how to make it; then, with PYTHONPATH=src:
python -m pytest --noconftest -c /dev/null tests/optimization/test_byzantine_flower.py
"""

from importlib.util import find_spec

import numpy as np
import pytest

from gnomon.optimization import NNM, Chain, Mean, TrimmedMean, to_flower_strategy
from gnomon.optimization.byzantine.flower import merge_layers


def test_merging_layers_for_flower():
    rng = np.random.default_rng(0)
    answers = [[rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=4)] for _ in range(5)]
    answers[4] = [np.full((2, 3), 1e6, dtype=np.float32), np.full(4, -1e6)]
    merged = merge_layers(answers, TrimmedMean(1))
    assert [m.shape for m in merged] == [(2, 3), (4,)]
    assert merged[0].dtype == np.float32
    rows = np.stack([np.concatenate([a.ravel() for a in answer]) for answer in answers])
    assert np.allclose(np.concatenate([m.ravel() for m in merged]), TrimmedMean(1)(rows), atol=1e-6)
    with pytest.raises(ValueError, match="different shapes"):
        merge_layers([answers[0], [np.zeros(2)]], Mean())
    with pytest.raises(TypeError, match="expected an aggregator"):
        to_flower_strategy(NNM(1), 1)
    with pytest.raises(ValueError, match="built for f=2"):
        to_flower_strategy(TrimmedMean(2), 1)


@pytest.mark.skipif(find_spec("flwr") is not None, reason="flwr is installed")
def test_flower_says_what_to_install():
    with pytest.raises(ImportError, match="pip install flwr"):
        to_flower_strategy(TrimmedMean(1), 1)


@pytest.mark.skipif(
    find_spec("flwr") is None, reason="flwr needs an environment of its own: benchmarks/peers/byzantine.txt"
)
def test_flower_strategy():
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server.strategy import Strategy

    strategy = to_flower_strategy(Chain(NNM(1), TrimmedMean(1)), 1, min_fit_clients=3)
    assert isinstance(strategy, Strategy)
    rows = np.random.default_rng(0).normal(size=(5, 6))
    rows[4] = 1e6
    results = [
        (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([r.reshape(2, 3)]), 10**i, {}))
        for i, r in enumerate(rows)
    ]
    merged, _ = strategy.aggregate_fit(1, results, [])
    assert np.allclose(parameters_to_ndarrays(merged)[0].ravel(), Chain(NNM(1), TrimmedMean(1))(rows))
    assert strategy.aggregate_fit(1, results[:2], []) == (None, {})

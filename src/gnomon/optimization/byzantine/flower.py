"""The aggregators as Flower strategies."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon.optimization.byzantine.aggregators import Aggregator, check_liars


def to_flower_strategy(aggregator: Aggregator, f: int, **options: Any) -> Any:
    """A Flower ``Strategy`` that merges the clients' parameters by a robust rule.

    It is ``flwr.server.strategy.FedAvg`` but for the merging of parameters: every client's counts once, whatever number of
    examples it says it has.

    Parameters
    ----------
    aggregator : Aggregator
        The rule, built for f.
    f : int
        Bound on the liars; rounds with fewer than 2 f + 1 answers leave the parameters as they are.
    **options
        Those of ``FedAvg``: ``fraction_fit``, ``min_fit_clients``, ``initial_parameters`` and so on.

    Raises
    ------
    ImportError
        Where ``flwr`` is not installed.
    ValueError
        For f < 0, or a rule that is built for another f.
    TypeError
        Unless the rule is an aggregator.
    """
    if not isinstance(aggregator, Aggregator):
        raise TypeError(
            f"aggregator: got {type(aggregator).__name__}; expected an aggregator such as Chain(NNM(f), TrimmedMean(f))"
        )
    check_liars(2 * f + 1, f)
    if aggregator.f not in (0, f):
        raise ValueError(f"aggregator: {aggregator} is built for f={aggregator.f}, not for f={f}")
    try:
        from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
        from flwr.server.strategy import FedAvg
    except ImportError as error:
        raise ImportError("to_flower_strategy needs Flower: pip install flwr (it pins old rich, typer and protobuf; use an "
                          "environment of its own)") from error  # fmt: skip

    class Robust(FedAvg):  # type: ignore[misc]
        """FedAvg with a robust rule in place of the average."""

        def __repr__(self) -> str:
            return f"Robust({aggregator}, f={f})"

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if len(results) <= 2 * f or (failures and not self.accept_failures):
                return None, {}
            answers = [parameters_to_ndarrays(fit.parameters) for _, fit in results]
            merged = merge_layers(answers, aggregator)
            metrics = [(fit.num_examples, fit.metrics) for _, fit in results]
            told = self.fit_metrics_aggregation_fn(metrics) if self.fit_metrics_aggregation_fn else {}
            return ndarrays_to_parameters(merged), told

    return Robust(**options)


def merge_layers(answers: list[list[np.ndarray]], aggregator: Aggregator) -> list[np.ndarray]:
    """Clients' lists of layers, merged by a rule on the flat parameters.

    Raises
    ------
    ValueError
        Where clients disagree on the shapes.
    """
    shapes = [[np.shape(layer) for layer in answer] for answer in answers]
    if any(s != shapes[0] for s in shapes):
        raise ValueError(f"clients sent layers of different shapes: {shapes}")
    rows = np.stack([np.concatenate([np.ravel(layer).astype(float) for layer in answer]) for answer in answers])
    ends = np.cumsum([int(np.prod(s)) for s in shapes[0]])
    parts = np.split(np.asarray(aggregator(rows)), ends[:-1])
    return [
        p.reshape(s).astype(np.asarray(layer).dtype) for p, s, layer in zip(parts, shapes[0], answers[0], strict=True)
    ]

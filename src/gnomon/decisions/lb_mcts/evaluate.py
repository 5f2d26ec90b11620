"""Evaluating configurations: cross-validated scores, in a process of their own where a time limit is set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any

import numpy as np


class EvaluationError(RuntimeError):
    """An evaluation that gave no number: an error, a time-out, or a process that died."""


def cross_validated(estimator: Any, X: np.ndarray, y: np.ndarray, splits: Sequence[tuple[np.ndarray, np.ndarray]],
                    scorer: Any) -> float:  # fmt: skip
    """The mean score over the splits; warnings of the fits are not shown."""
    from sklearn.base import clone

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for train, test in splits:
            fitted = clone(estimator).fit(X[train], y[train])
            found.append(float(scorer(fitted, X[test], y[test])))
    return float(np.mean(found))


class Worker:
    """Calls ``function(*held, argument)`` in a process of its own, which is ended when a call takes too long.

    Parameters
    ----------
    function : callable
    held : tuple
        Arguments that are sent once (the data).
    timeout : float or None
        Seconds a call may take; None: everything happens in this process, and nothing is limited.
    """

    def __init__(self, function: Callable[..., Any], held: tuple[Any, ...], timeout: float | None):
        self.function, self.held, self.timeout = function, held, timeout
        self._pool: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, argument: Any) -> Any:
        """The result.

        Raises
        ------
        EvaluationError
            When the call raises, takes too long, or its process dies.
        """
        try:
            if self.timeout is None:
                return self.function(*self.held, argument)
            if self._pool is None:
                self._open()
            return self._pool.submit(_call, argument).result(self.timeout)
        except FutureTimeout:
            self.close()
            raise EvaluationError(f"timed out after {self.timeout:g} s") from None
        except Exception as error:
            if type(error).__name__ in ("BrokenProcessPool", "TerminatedWorkerError"):
                self.close()
                raise EvaluationError("the process died") from None
            raise EvaluationError(f"{type(error).__name__}: {error}") from error

    def _open(self) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        self._pool = ProcessPoolExecutor(max_workers=1, initializer=_hold, initargs=(self.function, self.held))
        self._pool.submit(_ready).result()  # the start of the process is nobody's time

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None


_held: dict[str, Any] = {}


def _hold(function: Callable[..., Any], held: tuple[Any, ...]) -> None:
    _held.update(function=function, held=held)


def _ready() -> bool:
    import sklearn.model_selection

    return bool(sklearn.model_selection)


def _call(argument: Any) -> Any:
    return _held["function"](*_held["held"], argument)

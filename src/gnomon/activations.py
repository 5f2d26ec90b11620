"""Capture and edit what flows between the modules of a network.

Both are context managers that leave the model as they found it, also when something inside fails::

    moments = linalg.Moments(576)
    with capture(model, {"model.layers.12": moments.update}, inputs=True):
        model(tokens)

    with edit(model, {"model.layers.12": add(vector, scale=4.0)}):
        model.generate(...)

Modules are named as in ``model.named_modules()``, or given themselves. The activation of a module is the first tensor
of its output (decoder layers return a tensor, older ones a tuple that starts with it), or with ``inputs=True`` its
first argument, whether passed by position or by keyword.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Reducer = Callable[[Tensor], Any]
Edit = Callable[[Tensor], Tensor | None]
Where = int | slice | Sequence[int] | Tensor | None


@contextmanager
def capture(model: nn.Module, reducers: Mapping[str | nn.Module, Reducer], *, inputs: bool = False,
            detach: bool = True) -> Iterator[None]:  # fmt: skip
    """Hand every activation of some modules to a function of it; nothing is kept here.

    Parameters
    ----------
    model : torch.nn.Module
    reducers : mapping of module (or its name) to callable
        Called with the activation at each forward pass, in the order of computation; what it returns is dropped. It
        must not change the tensor in place, nor keep it if memory matters.
    inputs : bool
        Take the module's first input instead of its output.
    detach : bool
        False hands on the tensor with its graph, for gradients.

    Raises
    ------
    ValueError
        For an unknown name (close ones are listed).
    TypeError
        When an activation is not a tensor.
    """

    def hook(name: str, reduce: Reducer) -> Edit:
        def look(value: Tensor) -> None:
            reduce(value.detach() if detach else value)

        return look

    with _hooked(model, {key: hook(str(key), fn) for key, fn in reducers.items()}, inputs):
        yield


@contextmanager
def edit(model: nn.Module, edits: Mapping[str | nn.Module, Edit], *, inputs: bool = False) -> Iterator[None]:
    """Replace the activations of some modules by a function of them.

    Parameters
    ----------
    model : torch.nn.Module
    edits : mapping of module (or its name) to callable
        Given the activation, returns the one to use instead, of the same shape, dtype and device, or None to leave it.
        :func:`patch`, :func:`add` and :func:`ablate` make such functions.
    inputs : bool
        Edit the module's first input instead of its output.

    Notes
    -----
    Edits and captures of one module act in the order in which they were entered: an inner one sees what an outer one
    made. While a cache of keys and values is in use, an activation holds only the new positions.

    Raises
    ------
    ValueError
        For an unknown name, or an edit that returns another shape, dtype or device.
    TypeError
        When an activation is not a tensor, or an edit returns something else.
    """
    with _hooked(model, edits, inputs):
        yield


def patch(source: Tensor, at: Where = None) -> Edit:
    """An edit that puts ``source`` in the place of the activation at positions ``at`` (second dimension; all if None).

    ``source`` must broadcast to the part that it replaces: (..., C) for (B, positions, C).
    """

    def fn(value: Tensor) -> Tensor:
        out = value.clone()
        where = _index(value, at)
        out[where] = source.to(value).expand_as(out[where])
        return out

    return fn


def add(vector: Tensor, scale: float = 1.0, at: Where = None) -> Edit:
    """An edit that adds ``scale * vector`` (C,) (or anything that broadcasts) at positions ``at``."""

    def fn(value: Tensor) -> Tensor:
        out = value.clone()
        where = _index(value, at)
        out[where] = out[where] + scale * vector.to(value)
        return out

    return fn


def ablate(directions: Tensor | None = None, mean: Tensor | None = None, at: Where = None) -> Edit:
    """An edit that removes directions, or all, at positions ``at``.

    Parameters
    ----------
    directions : Tensor (C,) or (k, C), optional
        Their span is projected out: x - (x - mean) P. They need not be orthonormal. None replaces the activation whole.
    mean : Tensor (C,), optional
        What takes their place (default: zero).
    """
    basis: Tensor | None = None
    if directions is not None:
        rows = directions.detach().double()
        rows = rows[None] if rows.dim() == 1 else rows
        if not torch.isfinite(rows).all() or (rows.norm(dim=-1) == 0).any():
            raise ValueError("directions: expected finite vectors other than zero")
        _, values, basis = torch.linalg.svd(rows, full_matrices=False)
        basis = basis[values > values[0] * max(rows.shape) * torch.finfo(torch.float64).eps]

    def fn(value: Tensor) -> Tensor:
        out = value.clone()
        where = _index(value, at)
        part = out[where]
        centre = torch.zeros_like(part) if mean is None else mean.to(part).expand_as(part)
        if basis is None:
            out[where] = centre
        else:
            b = basis.to(part)
            out[where] = part - (part - centre) @ b.T @ b
        return out

    return fn


# --- how -------------------------------------------------------------------------------------------------------------


def _index(value: Tensor, at: Where) -> tuple[Any, ...]:
    if at is None:
        return (...,)
    if value.dim() < 3:
        raise ValueError(f"at: the activation has shape {tuple(value.shape)}, without a dimension of positions")
    if isinstance(at, int):
        at = [at]
    return (slice(None), at if isinstance(at, slice) else torch.as_tensor(at, device=value.device))


def _named(model: nn.Module, key: str | nn.Module) -> tuple[str, nn.Module]:
    modules = dict(model.named_modules())
    if isinstance(key, nn.Module):
        for name, module in modules.items():
            if module is key:
                return name, module
        raise ValueError(f"the module {type(key).__name__} is no part of {type(model).__name__}")
    if key in modules:
        return key, modules[key]
    near = difflib.get_close_matches(key, modules, n=5, cutoff=0.5)
    raise ValueError(
        f"{type(model).__name__} has no module {key!r}; "
        + (f"close ones: {', '.join(near)}" if near else f"it starts with {', '.join(list(modules)[1:6])}")
    )


@contextmanager
def _hooked(model: nn.Module, edits: Mapping[str | nn.Module, Edit], inputs: bool) -> Iterator[None]:
    chosen = [(*_named(model, key), fn) for key, fn in edits.items()]
    with ExitStack() as stack:
        for name, module, fn in chosen:
            if inputs:
                handle = module.register_forward_pre_hook(_before(name, fn), with_kwargs=True)
            else:
                handle = module.register_forward_hook(_after(name, fn))
            stack.callback(handle.remove)
        yield


def _before(name: str, fn: Edit) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            new = _apply(name, fn, args[0])
            return None if new is None else ((new, *args[1:]), kwargs)
        if not kwargs:
            raise TypeError(f"the module {name!r} was called without arguments")
        key = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        new = _apply(name, fn, kwargs[key])
        return None if new is None else (args, {**kwargs, key: new})

    return hook


def _after(name: str, fn: Edit) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, Mapping):  # transformers' ModelOutput
            key = next(iter(output))
            new = _apply(name, fn, output[key])
            return None if new is None else type(output)(**{**output, key: new})
        if isinstance(output, tuple):
            new = _apply(name, fn, output[0])
            return None if new is None else (new, *output[1:])
        return _apply(name, fn, output)

    return hook


def _apply(name: str, fn: Edit, value: Any) -> Tensor | None:
    if not isinstance(value, Tensor):
        raise TypeError(f"the activation of {name!r} is {type(value).__name__}, not a tensor")
    new = fn(value)
    if new is None:
        return None
    if not isinstance(new, Tensor):
        raise TypeError(f"the edit of {name!r} returned {type(new).__name__}; expected a tensor or None")
    if new.shape != value.shape or new.dtype != value.dtype or new.device != value.device:
        raise ValueError(
            f"the edit of {name!r} returned {new.dtype} {tuple(new.shape)} on {new.device}; "
            f"expected {value.dtype} {tuple(value.shape)} on {value.device}"
        )
    return new

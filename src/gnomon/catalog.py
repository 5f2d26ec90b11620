"""Finds the systems by walking the area folders; nothing is registered by hand and nothing heavy is imported."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnomon.study.protocol import Study

ROOT = Path(__file__).resolve().parent

AREAS = {
    "architectures": "Sequence layers and models: linear-time mixers, spiking networks, circuits",
    "decisions": "Bandits, exploration, hyper-parameter search, social choice",
    "dynamics": "How representations move while a network learns",
    "evaluation": "What models know and how they behave in games",
    "finetuning": "What fine-tuning changes, and how to keep it safe",
    "generalization": "Flatness, sparsity, stability and what they say about test error",
    "geometry": "Optimal transport, alignment, factors and fidelity of samples",
    "graphs": "Partitioning, calibration and explanation of graph learning; graph retrieval",
    "guarantees": "Verification, repair and abstention with proof",
    "interpretability": "Sparse autoencoders, probes and circuits",
    "multimodal": "Speech, images and text in one space",
    "optimization": "Optimisers: spectral, staged, robust to Byzantine workers",
    "physics": "Wind, molecules and bodies: simulation by learning",
    "posttraining": "Preference and reasoning objectives after pre-training",
    "sampling": "Sketches of streams, fast softmax draws, diffusion schedules",
    "surgery": "Edit a trained transformer without training it",
    "vision3d": "Pose, flow and splats in three dimensions",
}


@dataclass(frozen=True)
class System:
    """One method: where it lives and what it says about itself."""

    area: str
    name: str

    @property
    def slug(self) -> str:
        return self.name.replace("_", "-")

    @property
    def module(self) -> str:
        return f"gnomon.{self.area}.{self.name}"

    @property
    def folder(self) -> Path:
        return ROOT / self.area / self.name

    @functools.cached_property
    def docstring(self) -> str:
        """The docstring of the system's package, read without importing it."""
        return ast.get_docstring(ast.parse((self.folder / "__init__.py").read_text(encoding="utf-8"))) or ""

    @property
    def summary(self) -> str:
        """Its first line."""
        return self.docstring.split("\n\n", 1)[0].replace("\n", " ").strip()

    def study(self) -> type[Study]:
        """The study class (imports the system's ``study`` module)."""
        from gnomon.study.protocol import Study

        module = importlib.import_module(f"{self.module}.study")
        own = [c for c in vars(module).values()
               if isinstance(c, type) and issubclass(c, Study) and c.__module__.startswith(module.__name__)]  # fmt: skip
        if len(own) != 1:
            raise TypeError(f"{module.__name__} defines {len(own)} studies; a system has one")
        return own[0]

    def evidence_path(self, folder: Path | None = None) -> Path:
        """The evidence file under ``folder`` (default: the recorded evidence)."""
        return (folder or evidence_folder()) / self.area / f"{self.name}.json"

    def figure(self, scale: str, folder: Path | None = None) -> str | None:
        """The recorded figure of a scale, as SVG text."""
        path = self.evidence_path(folder).with_name(f"{self.name}.{scale}.svg")
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def evidence(self, folder: Path | None = None) -> dict[str, Any]:
        """The recorded evidence, ``{"scales": {...}}``; empty when nothing was recorded."""
        path = self.evidence_path(folder)
        if not path.is_file():
            return {"area": self.area, "system": self.name, "scales": {}}
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


def evidence_folder() -> Path:
    """Where recorded evidence lives: ``$GNOMON_EVIDENCE``, else ``evidence/`` of the checkout, else of this folder."""
    if given := os.environ.get("GNOMON_EVIDENCE"):
        return Path(given)
    checkout = ROOT.parents[1] / "evidence"
    return checkout if checkout.is_dir() else Path("evidence")


def systems(area: str | None = None) -> list[System]:
    """All systems, or those of one area, in alphabetical order."""
    if area is not None and area not in AREAS:
        raise ValueError(f"unknown area {area!r}; one of {', '.join(AREAS)}")
    found = sorted(
        p.parent
        for a in ([area] if area else AREAS)
        for p in (ROOT / a).glob("*/study*")
        if p.stem == "study" and (p.parent / "__init__.py").is_file()  # else it is being written, or left over
    )
    return [System(p.parent.name, p.name) for p in dict.fromkeys(found)]


def find(name: str) -> System:
    """The system of that name, written with dashes or underscores, with or without its area."""
    wanted = name.replace("-", "_").replace("/", ".").split(".")[-1]
    every = systems()
    for system in every:
        if system.name == wanted:
            return system
    near = difflib.get_close_matches(wanted, [s.name for s in every], n=3)
    hint = f"did you mean {', '.join(n.replace('_', '-') for n in near)}?" if near else "see `gnomon list`"
    raise ValueError(f"unknown system {name!r}: {hint}")

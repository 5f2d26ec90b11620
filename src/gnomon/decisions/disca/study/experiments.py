"""The experiments: simulated panels about real human data, and a language model's own personas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import study
from gnomon.decisions.disca.human import COUNTRIES, DIMENSIONS, human_amce
from gnomon.decisions.disca.scenarios import amce, moral_scenarios
from gnomon.decisions.disca.study.contenders import ABLATIONS, RULES, Corrected
from gnomon.decisions.disca.study.worlds import MOST, REGIMES, World, derangement, effects, mis, world
from gnomon.stats import spearman

INFORMATIVE = ["unbiased", "shared bias", "agreeing biased", "amplified"]
FEW = ["DEU", "BRA", "CHN", "VNM", "EGY"]


class Panels(study.Experiment):
    """Personas with known noise and bias about the preferences of 20 countries: who gets nearer to the people?"""

    seeds = 1
    unit = "repeat"
    cells = study.grid(regime=list(REGIMES))
    contenders = {"disca": Corrected(), **RULES, **ABLATIONS}
    metrics = {
        "mis": study.lower(),
        "relative": study.lower(),
        "reliability": study.higher(),
        "worst": study.lower("nats"),
        "spread_error": study.higher(),
        "active": study.lower(),
    }

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[Any]:
        table = human_amce(path=inputs.human)
        human = table.loc[[c for c in COUNTRIES if c in table.index]]
        drawn = []
        for _ in range(inputs.repeats):
            made = world(human, cell.regime, rng)
            C = len(human)
            moved = made.panel[derangement(C, rng)]
            mixed = np.stack([made.panel[derangement(C, rng), :, i] for i in range(MOST)], axis=-1)
            drawn.append((made, {"own": made.panel, "another country's": moved, "each of another country's": mixed}))
        return drawn

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [{"repeat": i, **self._one(made, panels, contender)} for i, (made, panels) in enumerate(problem)]

    def _one(self, made: World, panels: dict[str, np.ndarray], contender: Any) -> dict[str, Any]:
        base = np.broadcast_to(made.base, made.people.shape)
        panel = panels[getattr(contender, "whose", "own")]
        found = contender(base, panel)
        gap = getattr(found, "gap", found)
        own = panels["own"][..., :4]
        row = {"mis": mis(gap, made.human)}
        row["relative"] = row["mis"] / mis(base, made.human) - 1
        harm = np.abs(gap[..., None] - own) - np.abs(base[..., None] - own)
        row["worst"] = float(harm.max(-1).mean())
        if hasattr(found, "gap"):
            error = np.abs(made.base - made.people)
            row |= {"reliability": float(found.reliability.mean()), "active": float(found.bounded.mean()),
                    "largest": float(np.max(np.abs(found.raw) / found.spread)),
                    "spread_error": spearman(found.spread.ravel(), error.ravel())}  # fmt: skip
        return row


class Model(study.Experiment):
    """A language model and its own personas on moral dilemmas: misalignment with the people of a country."""

    seeds = 1
    unit = "country"
    cells = study.grid(country=list(COUNTRIES))
    contenders = {
        "disca": Corrected(),
        **RULES,
        "country prompt": "country prompt",
        "average citizen": "average citizen",
        "kappa 1": Corrected({"kappa": 1.0}),
        "wrong country": Corrected(whose="another country's"),
    }
    metrics = {"mis": study.lower(), "pearson": study.higher(), "js": study.lower("nats"), "below_bias": study.lower()}

    @study.stage(version=1, inputs=("model", "templates", "characters"), cell=(), seeded=False)
    def base(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, np.ndarray]:
        """Gaps of the base model, with order bias and mass, by scenario."""
        return self._read(inputs, [""])

    @study.stage(version=1, inputs=("model", "templates", "characters"), cell=("country",), seeded=False)
    def voices(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, np.ndarray]:
        """Gaps under the four personas and under the country's prompt, by scenario."""
        from gnomon.decisions.disca.baselines import country_prompt
        from gnomon.decisions.disca.personas import PersonaPanel

        return self._read(inputs, [*PersonaPanel.generic(cell.country).texts, country_prompt(cell.country)])

    def _read(self, inputs: Any, systems: list[str]) -> dict[str, np.ndarray]:
        from gnomon.decisions.disca.method import DISCA

        disca = DISCA(inputs.model)
        asked = [(s.question, s.options) for s in moral_scenarios(DIMENSIONS, inputs.templates, inputs.characters)]
        read = [disca.read(s, asked) for s in systems]
        return {"gap": np.stack([r.logs[:, 0] - r.logs[:, 1] for r in read], axis=-1),
                "bias": np.stack([r.bias for r in read], axis=-1), "mass": np.stack([r.mass for r in read], axis=-1)}  # fmt: skip

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        countries = [c["country"] for c in self.cells]
        other = countries[(countries.index(cell.country) + 1) % len(countries)]
        voices = self.voices(inputs, cell)
        panels = {"own": voices["gap"][:, :4]}
        if inputs.scale != "smoke":  # one country there
            kept = FEW if inputs.scale == "laptop" else countries
            other = kept[(kept.index(cell.country) + 1) % len(kept)]
            panels["another country's"] = self.voices(inputs, type(cell)({"country": other}))["gap"][:, :4]
        base = self.base(inputs, cell)
        return SimpleNamespace(
            country=cell.country, scenarios=moral_scenarios(DIMENSIONS, inputs.templates, inputs.characters), panels=panels,
            base=base["gap"][:, 0], bias=base["bias"][:, 0], mass=base["mass"][:, 0], prompt=voices["gap"][:, 4],
            human=human_amce(cell.country, inputs.human), error=human_amce(cell.country, inputs.human, errors=True), seed=7,
        )  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender != "wrong country" or inputs.scale != "smoke"

    def gaps(self, problem: Any, contender: Any) -> np.ndarray:
        """Gaps of a contender by scenario."""
        if contender == "country prompt":
            return problem.prompt  # type: ignore[no-any-return]
        if contender == "average citizen":
            return problem.panels["own"][:, 3]  # type: ignore[no-any-return]
        found = contender(problem.base, problem.panels[getattr(contender, "whose", "own")])
        return getattr(found, "gap", found)  # type: ignore[no-any-return]

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [self.row(problem, self.gaps(problem, contender))]

    def row(self, problem: Any, gap: np.ndarray) -> dict[str, Any]:
        """Misalignment with its bootstrap over scenarios and human errors."""
        from gnomon.decisions.disca.human import misalignment

        p = (1 + effects(gap)) / 2
        found = misalignment(amce(problem.scenarios, p), problem.human)
        low, high = self._interval(problem, p)
        return {"country": problem.country, "mis": found.mis, "mis_low": low, "mis_high": high, "pearson": found.pearson,
                "js": float(found.table["js"].mean()), "below_bias": float((np.abs(problem.base) < problem.bias).mean()),
                "order_bias": float(problem.bias.mean()), "refused": float((problem.mass < 0.05).mean()),
                **{f"amce_{d}": float(v) for d, v in found.table["model"].items()}}  # fmt: skip

    def _interval(self, problem: Any, p: np.ndarray, draws: int = 400) -> tuple[float, float]:
        """2.5 and 97.5 % of the distance when scenarios are drawn again within dimensions and human effects with their errors."""
        rng = np.random.default_rng(problem.seed)
        kinds = [s.dimension for s in problem.scenarios]
        rows = {d: np.array([i for i, k in enumerate(kinds) if k == d]) for d in dict.fromkeys(kinds)}
        model = np.stack([2 * p[rng.choice(at, (draws, len(at)))].mean(1) - 1 for at in rows.values()], axis=1)
        names = list(rows)
        human = rng.normal(problem.human[names], problem.error[names], (draws, len(names)))
        low, high = np.quantile(np.linalg.norm(model - human, axis=1), (0.025, 0.975))
        return float(low), float(high)


class OpenEnded(Model):
    """The same scenarios without options: sampled answers, mapped to a side by the base model."""

    contenders = {"disca": "disca", "base": "base"}
    metrics = {"open_mis": study.lower(), "neither": study.lower()}

    @study.stage(version=1, inputs=("model", "templates", "characters"), cell=("country",), seeded=False)
    def answers(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, np.ndarray]:
        """Probability of the first side, before and after, and of neither, by scenario."""
        from gnomon.decisions.disca.method import DISCA
        from gnomon.decisions.disca.personas import PersonaPanel

        disca = DISCA(inputs.model, PersonaPanel.generic(cell.country))
        plain = DISCA(inputs.model, PersonaPanel.generic(cell.country), lam=1.0)  # the base alone: no shift
        plain._source = disca.source
        found: dict[str, list[Any]] = {"disca": [], "base": []}
        for s in moral_scenarios(DIMENSIONS, inputs.templates, inputs.characters):
            for name, asked in (("disca", disca), ("base", plain)):
                told = asked.decide_open(s.question, list(s.options))
                assert told.sides is not None
                sides = told.sides / max(told.sides.sum(), 1e-12)
                found[name].append((sides[0] if told.sides.sum() > 0 else 0.5, told.neither))
        return {name: np.array(rows) for name, rows in found.items()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(country=cell.country, answers=self.answers(inputs, cell), human=human_amce(cell.country, inputs.human),
                               scenarios=moral_scenarios(DIMENSIONS, inputs.templates, inputs.characters))  # fmt: skip

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        from gnomon.decisions.disca.human import misalignment

        rows = problem.answers[contender]
        found = misalignment(amce(problem.scenarios, rows[:, 0]), problem.human)
        return [{"country": problem.country, "open_mis": found.mis, "neither": float(rows[:, 1].mean())}]


class WhiteBox(Model):
    """What the weights allow: steering by activations, and fine-tuning on the country's own answers (an upper bound)."""

    contenders = {"disca": Corrected(), "steering": "steering", "fine-tuned": "fine-tuned"}
    metrics = {"white_mis": study.lower()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        problem = super().prepare(inputs, cell, rng)
        problem.model = inputs.model
        return problem

    def gaps(self, problem: Any, contender: Any) -> np.ndarray:
        from gnomon.decisions.disca import baselines
        from gnomon.decisions.disca.method import DISCA

        if not isinstance(contender, str):
            return super().gaps(problem, contender)
        asked = [(s.question, s.options) for s in problem.scenarios]
        disca = DISCA(problem.model)
        if contender == "steering":
            return baselines.steered_gaps(disca, problem.country, asked)
        # half of the scenarios train, the other half is asked, and the other way round
        target = (1 + np.array([problem.human[s.dimension] for s in problem.scenarios])) / 2
        found = np.empty(len(asked))
        for half in (0, 1):
            train, rest = np.arange(half, len(asked), 2), np.arange(1 - half, len(asked), 2)
            found[rest] = baselines.fine_tuned_gaps(
                disca, [asked[i] for i in train], target[train], [asked[i] for i in rest]
            )
        return found

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        row = self.row(problem, self.gaps(problem, contender))
        return [{**row, "white_mis": row["mis"]}]

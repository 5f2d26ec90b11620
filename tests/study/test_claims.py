"""Claims are validated where they are written, and their digest is their definition."""

from __future__ import annotations

import math

import pytest

from gnomon import study
from gnomon.study.claims import KINDS, Claim, label

BOUND = 0.25


def made():
    return [
        study.always(lambda t: t["error"] >= 0, table="T"),
        study.rate("covered", "a", at_least=0.9),
        study.better("nll", "a", than=["b", "c"], each=["n"], on={"n": [3, 5]}),
        study.worse("nll", "a", "b", factor=2),
        study.close("nll", "a", "b", within=0.1),
        study.at_least("accuracy", "a", 0.9),
        study.at_most("error", "a", 0.1),
        study.between("size", "a", 1, 2),
        study.slope("error", "a", along="n", between=(-0.6, -0.4)),
        study.correlates("x", "y", at_least=0.5, over="graph"),
        study.ordered("residual", along=["d", "c", "b"], slack=0.01),
        study.beyond("cosine", "a", "random"),
        study.estimate("lead", at_least=0, table="leads"),
    ]


def test_one_constructor_per_kind():
    assert tuple(c.kind for c in made()) == KINDS


def test_names_are_readable_and_unique():
    claims = made()
    assert len({c.id for c in claims}) == len(claims)
    assert claims[2].id == "better-nll-a-than-b-c-n-3-5-n"
    assert claims[2].text == "a has better nll than b and c (n=3|5; for each n)"
    assert claims[8].text == "error of a scales with n with an exponent between -0.6 and -0.4"
    assert all(c.text and c.id for c in claims)


def test_selections_by_column():
    claim = study.better("auc", {"probe": "verification"}, than={"probe": "generation"})
    assert claim.than == ({"probe": "generation"},)
    assert label(claim.a) == "probe=verification"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: study.always(3), "test 3"),
        (lambda: study.always("x", share=0), "share 0"),
        (lambda: study.rate("x", at_most=1.2), "at_most 1.2"),
        (lambda: study.rate("x"), "bounds"),
        (lambda: study.better("", "a", "b"), "metric ''"),
        (lambda: study.better("m", "a", []), "than"),
        (lambda: study.better("m", None, "b"), "a None"),
        (lambda: study.better("m", "a", "b", by=math.nan), "by nan"),
        (lambda: study.better("m", "a", "b", factor=0), "factor 0"),
        (lambda: study.better("m", "a", "b", by=1, factor=2), "factor 2"),
        (lambda: study.close("m", "a", "b", within=0), "within 0"),
        (lambda: study.at_least("m", "a", math.inf), "bound inf"),
        (lambda: study.between("m", "a", 2, 1), r"between \(2.0, 1.0\)"),
        (lambda: study.slope("m", along="n"), "bounds"),
        (lambda: study.slope("m", along="n", between=(1, 2), at_least=1), "between"),
        (lambda: study.correlates("x", "y", at_least=2), "at_least 2"),
        (lambda: study.ordered("m", along=["a"]), "along"),
        (lambda: study.ordered("m", along="n", slack=-1), "slack -1"),
        (lambda: study.ordered("m", along="n", towards="up"), "towards 'up'"),
        (lambda: study.beyond("m", "a", "b", share=1), "share 1"),
        (lambda: study.estimate("m"), "bounds"),
        (lambda: study.better("m", "a", "b", on=3), "on 3"),
        (lambda: study.better("m", "a", "b", each=[3]), "each 3"),
        (lambda: study.better("m", "a", "b", when=True), "when True"),
        (lambda: study.better("m", "a", "b", unit=[]), "unit"),
        (lambda: study.better("m", "a", "b", table=3), "table 3"),
        (lambda: study.better("m", "a", "b", report=1), "report 1"),
    ],
)
def test_bad_arguments_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_unknown_argument():
    with pytest.raises(TypeError, match="wihtin"):
        study.better("m", "a", "b", wihtin=3)


def test_report_needs_no_bounds():
    assert study.slope("m", along="n", report=True).report


def test_digest_ignores_words_and_sees_numbers():
    base = study.better("m", "a", "b")
    assert base.digest == study.better("m", "a", "b", text="other", paper="Table 2", id="x").digest
    others = [study.better("m", "a", "b", by=0.1), study.worse("m", "a", "b"), study.better("m", "a", "c"),
              study.better("m", "a", "b", on={"n": 3}), study.better("m", "a", "b", unit="item"),
              study.better("m", "a", "b", when=base)]  # fmt: skip
    assert len({base.digest, *(c.digest for c in others)}) == 7
    assert len(base.digest) == 16


def helper(t):
    return t["x"] > BOUND


def test_digest_of_callables_is_their_own_source():
    one = study.always(lambda t: t["x"] > 0.1, text="first")
    same = study.always(lambda t: t["x"] > 0.1, text="second, elsewhere on the page")
    two, three = study.always(lambda t: t["x"] > 0.1), study.always(lambda t: t["x"] > 0.2)
    assert one.digest == same.digest == two.digest
    assert three.digest != two.digest


def test_digest_of_callables_sees_closures_and_constants(monkeypatch):
    def over(k):
        return study.always(lambda t: t["x"] > k)

    assert over(1).digest == over(1).digest != over(2).digest
    before = study.always(helper).digest, study.always(lambda t: helper(t)).digest
    monkeypatch.setitem(globals(), "BOUND", 0.5)
    after = study.always(helper).digest, study.always(lambda t: helper(t)).digest
    assert not set(before) & set(after)


def test_digest_without_source_is_by_code():
    space: dict = {}
    exec("f = lambda t: t['x'] > 1\ng = lambda t: t['x'] > 2", space)
    assert study.always(space["f"], text="f").digest != study.always(space["g"], text="f").digest


def test_claims_do_not_change():
    with pytest.raises(AttributeError):
        made()[0].text = "other"
    assert isinstance(made()[0], Claim)

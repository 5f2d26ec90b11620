"""DISCA: the correction against hand cases and its reference, personas, scenarios, sources, baselines."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import truncnorm

from gnomon import models
from gnomon.decisions import DISCA, PersonaPanel, amce, correct, human_amce, misalignment, moral_scenarios
from gnomon.decisions.disca import baselines
from gnomon.decisions.disca.human import DIMENSIONS, js
from gnomon.decisions.disca.method import prompt
from gnomon.decisions.disca.personas import COUNTRY, ITEMS
from gnomon.decisions.disca.sources import EndpointSource, LocalSource

RNG = np.random.default_rng(0)
gaps = st.floats(-20, 20, allow_nan=False)
panels = st.integers(2, 6).flatmap(lambda n: st.tuples(gaps, st.lists(gaps, min_size=n, max_size=n)))


# --- the correction --------------------------------------------------------------------------------------------------


def test_the_hand_case():
    found = correct(0.0, [1.0, 2.0, 3.0, 2.0])
    assert found.spread == pytest.approx(0.816497, abs=1e-6)
    assert found.shift == pytest.approx(0.460636, abs=1e-6)
    assert found.reliability == pytest.approx(0.913188, abs=1e-6)
    assert found.gap == found.shift


@pytest.mark.parametrize(("d0", "panel"), [(0.5, [0.5] * 4), (0.0, [3.0] * 4), (-2.0, [1.0, 1.0])])
def test_consensus_moves_nothing(d0, panel):
    found = correct(d0, panel)
    assert found.gap == d0
    assert found.shift == 0
    assert found.reliability == 0


def test_a_symmetric_panel_moves_nothing():
    assert abs(correct(0.0, [-1.0, 1.0, -1.0, 1.0]).raw) < 1e-12
    assert abs(correct(2.0, [1.0, 3.0, 1.5, 2.5], reliability="none").shift) < 1e-12


@given(panels, st.floats(-5, 5), st.floats(0.1, 10))
@settings(max_examples=60, deadline=None)
def test_equivariance_and_bound(case, t, q):
    d0, panel = case
    panel = np.array(panel)
    found = correct(d0, panel)
    s = float(found.spread)
    close = {"rtol": 1e-6, "atol": 1e-7 * max(1.0, s)}
    if s < 1e-6:  # beside the threshold of consensus
        return
    np.testing.assert_allclose(correct(d0 + t, panel + t).shift, found.shift, **close)
    np.testing.assert_allclose(correct(-d0, -panel).shift, -found.shift, **close)
    np.testing.assert_allclose(
        correct(q * d0, q * panel).shift, q * found.shift, rtol=1e-6, atol=1e-7 * max(1.0, q * s)
    )
    np.testing.assert_allclose(correct(d0, panel[::-1]).shift, found.shift, **close)
    assert abs(found.shift) <= s
    assert abs(found.raw) <= 0.6825 * s  # what the defaults can reach
    assert 0 <= found.reliability <= 1
    assert abs(correct(d0, panel, lam=0, kappa=1, power=1, bound=0.3).shift) <= 0.3 * s * (1 + 1e-12)


def test_limits():
    d0, panel = RNG.normal(size=50), RNG.normal(size=(50, 4))
    np.testing.assert_allclose(correct(d0, panel, lam=1.0).shift, 0, atol=1e-12)
    np.testing.assert_allclose(correct(d0, panel, eta=1e9).raw, 0, atol=1e-8)
    assert correct(d0, panel, eta=math.inf).raw == pytest.approx(0, abs=1e-12)


def test_risk_neutral_personas_far_to_one_side():
    """The weights are then a normal about 1 / eta, cut to [-3, 3]."""
    found = correct(0.0, [10.0, 10.5, 11.0, 10.2], lam=0, kappa=1, power=1)
    assert found.raw / found.spread == pytest.approx(truncnorm(-5, 1, loc=2).mean(), abs=5e-3)
    assert found.raw / found.spread == pytest.approx(1.7152, abs=1e-4)
    assert found.reliability == pytest.approx(0.8432, abs=1e-4)
    assert found.shift == pytest.approx(found.spread)  # the bound
    assert found.bounded
    free = correct(0.0, [10.0, 10.5, 11.0, 10.2], lam=0, kappa=1, power=1, bound=math.inf)
    assert free.shift == pytest.approx(0.8432 * 1.7152 * found.spread, rel=1e-3)


@pytest.mark.parametrize(
    "options", [{}, {"kappa": 1.0}, {"lam": 0.0, "power": 1.0}, {"eta": 0.05}, {"magnitude": 2.0}, {"bound": 0.2}]
)
def test_compiled_equals_the_reference(options):
    d0, panel = RNG.normal(size=(7, 30)), RNG.normal(size=(7, 30, 5)) * 3
    fast, slow = correct(d0, panel, **options), correct(d0, panel, backend="numpy", **options)
    for a, b in zip(fast, slow, strict=True):
        assert a.shape == (7, 30)
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_vectors_equal_the_loop():
    d0, panel = RNG.normal(size=20), RNG.normal(size=(20, 3))
    whole = correct(d0, panel)
    for i in range(20):
        one = correct(d0[i], panel[i])
        for a, b in zip(whole, one, strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-12)


def test_two_personas_keep_the_spread_when_one_is_left_out():
    found = correct(0.0, [1.0, 3.0])
    s = math.sqrt(2)
    alone = [
        s * float(correct(0.0, [d / s + 0.5, d / s - 0.5], reliability="none", magnitude=1.0).raw) for d in (1.0, 3.0)
    ]
    assert 0 < found.reliability < 1
    assert found.spread == pytest.approx(s)
    assert alone[0] < found.raw * 3  # both are on one side: so is the shift
    assert found.raw > 0


def test_the_grid_is_fine_enough():
    """401 points against an adaptive integral."""
    from scipy.integrate import quad

    from gnomon.decisions.disca.correction import value

    d = np.array([1.0, 2.0, 3.0, 2.0])
    s = d.std(ddof=1)
    u = d / s

    def weight(z):
        U = 0.7 * value(np.abs(u) - np.abs(z - u)).mean() + 0.3 * float(value(-abs(z)))
        return math.exp(-z * z / 2 + U / 0.5)

    points = [0.0, *u]
    mass = quad(weight, -3, 3, points=points, limit=200)[0]
    mean = quad(lambda z: z * weight(z), -3, 3, points=points, limit=200)[0] / mass
    assert correct(0.0, d, reliability="none").raw == pytest.approx(s * mean, rel=2e-4)


def test_draws_tend_to_the_quadrature():
    d0, panel = np.zeros(400), np.tile([1.0, 2.0, 3.0, 2.0], (400, 1))
    exact = correct(0.0, panel[0], reliability="none").raw
    drawn = correct(d0, panel, estimator="importance", draws=2000, reliability="none", random_state=1).raw
    assert drawn.mean() == pytest.approx(exact, abs=4 * drawn.std() / math.sqrt(400) + 1e-3)
    few = correct(d0, panel, estimator="importance", draws=20, reliability="none", random_state=1).raw
    assert drawn.std() < few.std() / 5
    again = correct(d0, panel, estimator="importance", draws=20, reliability="none", random_state=1).raw
    assert (few == again).all()


def test_passes_that_differ_are_trusted_less():
    d0, panel = np.zeros(300), np.tile([1.0, 2.0, 3.0, 2.0], (300, 1))
    many = correct(d0, panel, estimator="importance", draws=5000, reliability="passes")
    few = correct(d0, panel, estimator="importance", draws=5, reliability="passes")
    assert many.reliability.mean() > 0.98 > few.reliability.mean()
    both = correct(d0, panel, estimator="importance", draws=5000, reliability="both").reliability
    jackknife = correct(0.0, panel[0]).reliability
    np.testing.assert_allclose(both, jackknife, atol=0.05)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: correct(0.0, [1.0]), "at least 2 personas"),
        (lambda: correct([0.0, 1.0], [[1.0, 2.0]]), r"expected \(2,\)"),
        (lambda: correct(math.nan, [1.0, 2.0]), "d0: holds NaN"),
        (lambda: correct(0.0, [1.0, math.inf]), "persona_gaps: holds NaN"),
        (lambda: correct(0.0, [1.0, 2.0], lam=-0.1), "lam: got -0.1"),
        (lambda: correct(0.0, [1.0, 2.0], kappa=0.5), "kappa: got 0.5"),
        (lambda: correct(0.0, [1.0, 2.0], eta=0), "eta: got 0"),
        (lambda: correct(0.0, [1.0, 2.0], power=0), "power: got 0"),
        (lambda: correct(0.0, [1.0, 2.0], bound=0), "bound: got 0"),
        (lambda: correct(0.0, [1.0, 2.0], reliability="x"), "reliability: got 'x'"),
        (lambda: correct(0.0, [1.0, 2.0], reliability="passes"), "use estimator='importance'"),
        (lambda: correct(0.0, [1.0, 2.0], estimator="x"), "estimator: got 'x'"),
        (lambda: correct(0.0, [1.0, 2.0], draws=0), "draws: got 0"),
        (lambda: correct(0.0, [1.0, 2.0], magnitude=-1), "magnitude: got -1"),
        (lambda: correct(0.0, [1.0, 2.0], backend="c"), "backend: got 'c'"),
    ],
)
def test_bad_gaps_and_options(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- deciding, with a stub -------------------------------------------------------------------------------------------


class Stub:
    """Prefers options by what they say, plus a liking for the first letter and a taste that depends on the persona."""

    name = "stub"

    def __init__(self, likes=None, first=0.0, tastes=None, mass=0.9):
        self.likes, self.first, self.tastes, self.mass, self.asked = likes or {}, first, tastes or {}, mass, 0

    def label_logprobs(self, system, prompts, labels):
        self.asked += len(prompts)
        rows = []
        for text in prompts:
            said = [line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("Option ")]
            score = np.array([self.likes.get(o, 0.0) + self.tastes.get(system, {}).get(o, 0.0) for o in said])
            score[0] += self.first
            rows.append(score - np.logaddexp.reduce(score) + math.log(self.mass))
        return np.array(rows)

    def sample(self, system, prompt, n, max_new_tokens, seed):
        return ["save the dog", "save the man", "save the dog", "", "whatever", "save the man"][:n]

    def score(self, system, prompt, answers):
        told = prompt.split("\n")[-1]
        if told.startswith("In short"):
            before = prompt.split("Answer: ")[1]
            return np.array([1.0 if a.split()[-1] in before else 0.0 for a in answers])
        return np.array([self.tastes.get(system, {}).get(a, 0.0) - len(a) / 100 for a in answers])


PANEL = PersonaPanel.from_texts(["p1", "p2", "p3"], country="VNM")


def test_a_liking_for_the_first_option_cancels():
    disca = DISCA(Stub(first=3.0), PANEL)
    found = disca.decide("Whom?", ["a man", "a dog"])
    np.testing.assert_allclose(found.base_probabilities, 0.5)
    np.testing.assert_allclose(found.probabilities, 0.5)
    assert found.order_bias == pytest.approx(1.5)
    assert not found.refused
    assert found.calls == 2 * 4


def test_a_decision_is_the_correction_of_its_gaps():
    stub = Stub({"a man": 1.0}, tastes={"p1": {"a man": 2.0}, "p2": {"a man": 1.0}, "p3": {"a man": 2.5}})
    disca = DISCA(stub, PANEL)
    found = disca.decide("Whom?", ["a man", "a dog"])
    expected = correct(1.0, [3.0, 2.0, 3.5])
    assert found.probabilities[0] == pytest.approx(1 / (1 + math.exp(-expected.gap)))
    np.testing.assert_allclose(found.persona_gaps, [[3.0, 2.0, 3.5]])
    np.testing.assert_allclose(found.correction, [expected.shift])
    turned = disca.decide("Whom?", ["a dog", "a man"])
    np.testing.assert_allclose(turned.probabilities, found.probabilities[::-1])
    np.testing.assert_allclose(turned.persona_gaps, -found.persona_gaps)
    np.testing.assert_allclose(turned.correction, -found.correction)


def test_a_prompt_is_asked_once():
    stub = Stub()
    disca = DISCA(stub, PANEL)
    first = disca.decide("Whom?", ["a man", "a dog"])
    assert disca.decide("Whom?", ["a man", "a dog"]).calls == 0
    assert stub.asked == disca.calls_ == first.calls == 8
    disca.decide_many([("Whom?", ["a man", "a dog"]), ("Whom now?", ["a man", "a dog"])])
    assert stub.asked == 16


def test_many_options_and_mixed_numbers():
    stub = Stub({"tea": 1.0, "milk": 0.5}, tastes={"p1": {"milk": 2.0}, "p2": {"milk": 1.0}, "p3": {"water": 0.5}})
    disca = DISCA(stub, PANEL)
    found, plain = disca.decide_many([("Drink?", ["tea", "milk", "water"]), ("Drink?", ["tea", "milk"])])
    assert found.probabilities.sum() == pytest.approx(1)
    assert found.persona_gaps.shape == (2, 3)
    assert found.probabilities[1] > found.base_probabilities[1]
    assert plain.probabilities.shape == (2,)
    gaps = correct([-0.5, -1.0], [[1.5, 0.5, -0.5], [-1.0, -1.0, -0.5]]).gap
    np.testing.assert_allclose(found.probabilities, np.exp([0, *gaps]) / np.exp([0, *gaps]).sum(), rtol=1e-12)


def test_refusals_are_flagged():
    assert DISCA(Stub(mass=0.03), PANEL).decide("Whom?", ["a man", "a dog"]).refused


def test_open_answers_go_to_the_side_they_choose():
    tastes = {p: {"save the dog": 1.0 + i} for i, p in enumerate(PANEL.texts)}
    found = DISCA(Stub(tastes=tastes), PANEL).decide_open("Whom?", ["the man", "the dog"])
    assert found.candidates == ["save the dog", "save the man", "whatever"]
    assert found.answer == "save the dog"
    assert found.probabilities[0] > found.base_probabilities[0]
    assert found.sides.sum() + found.neither == pytest.approx(1)
    assert found.sides[1] == pytest.approx(found.probabilities[0])
    assert found.neither == pytest.approx(found.probabilities[2])
    assert DISCA(Stub(), PANEL).decide_open("Whom?").sides is None


def test_effects_of_known_weights_are_recovered():
    weight = dict(zip(DIMENSIONS, np.linspace(-1.5, 1.5, 9), strict=True))
    scenarios = moral_scenarios()
    gap = np.array([weight[s.dimension] for s in scenarios]) + RNG.normal(0, 0.3, len(scenarios))
    found = amce(scenarios, 1 / (1 + np.exp(-gap)))
    for d, w in weight.items():
        assert found[d] == pytest.approx(math.tanh(w / 2), abs=3 * 0.15 / math.sqrt(12) + 0.01)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: DISCA(Stub(), PANEL).decide("Whom?", ["a man", "A man "]), ValueError, "all differ"),
        (lambda: DISCA(Stub(), PANEL).decide("Whom?", ["a man"]), ValueError, "expected 2 to 26"),
        (lambda: DISCA(Stub(), PANEL).decide(" ", ["a", "b"]), ValueError, "question: got ' '"),
        (lambda: DISCA(Stub()).decide("Whom?", ["a", "b"]), ValueError, "panel: none was given"),
        (lambda: DISCA(Stub(), ["p1", "p2"]), TypeError, "expected a PersonaPanel"),
        (lambda: DISCA(Stub(), PANEL, lam=2), ValueError, "lam: got 2"),
        (lambda: DISCA(Stub(), PANEL, bound=-1), ValueError, "bound: got -1"),
        (lambda: DISCA(Stub(), PANEL, temperature=0), ValueError, "temperature: got 0"),
        (lambda: DISCA(Stub(), PANEL, reliability="x"), ValueError, "got 'x'"),
        (lambda: DISCA(3, PANEL).decide("Whom?", ["a", "b"]), TypeError, "model: got int"),
        (lambda: DISCA(Stub(), PANEL).decide_open("Whom?", n_candidates=1), ValueError, "n_candidates: got 1"),
        (lambda: PersonaPanel.from_texts(["one"]), ValueError, "got 1; expected at least 2"),
        (lambda: PersonaPanel.from_texts(["one", " "]), ValueError, "none of them empty"),
        (lambda: PersonaPanel.generic("VIETNAM"), KeyError, "near: .*VNM"),
        (lambda: moral_scenarios(["colour"]), ValueError, "unknown 'colour'"),
        (lambda: moral_scenarios("age"), ValueError, "expected a list"),
        (lambda: moral_scenarios(templates=4), ValueError, "templates: got 4"),
        (lambda: amce(moral_scenarios(["age"]), [0.5]), ValueError, "got 1 for 12"),
        (lambda: misalignment({"age": 2.0}, {"age": 0.0}), ValueError, r"lie in \[-1, 1\]"),
        (lambda: misalignment({"age": 0.0}, {"law": 0.0}), ValueError, "has no 'age'"),
        (lambda: misalignment({}, {"law": 0.0}), ValueError, "got no effect"),
    ],
)
def test_bad_input(call, error, says):
    with pytest.raises(error, match=says):
        call()


# --- people ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people():
    try:
        return human_amce()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def test_human_effects(people):
    assert people.shape == (130, 9)
    assert list(people) == list(DIMENSIONS)
    own = human_amce("VNM")
    assert misalignment(own, own).mis == 0
    assert misalignment(own, own).pearson == pytest.approx(1)
    assert (human_amce("VNM", errors=True) > 0).all()
    other = misalignment(own, human_amce("USA"))
    assert other.mis == pytest.approx(np.linalg.norm(own - human_amce("USA")))
    assert list(other.table) == ["model", "human", "difference", "js"]
    with pytest.raises(KeyError, match=r"near: .*VNM"):
        human_amce("VIETNAM")


def test_a_file_without_the_columns(tmp_path):
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / "x.csv")
    with pytest.raises(ValueError, match="has no column"):
        human_amce(path=tmp_path / "x.csv")


def test_divergence():
    assert js(np.array([0.3]), np.array([0.3]))[0] == pytest.approx(0, abs=1e-15)
    assert js(np.array([0.0]), np.array([1.0]))[0] == pytest.approx(math.log(2))


# --- personas --------------------------------------------------------------------------------------------------------


def survey(countries=("VNM", "USA", "DEU", "JPN", "BRA", "EGY"), n=60):
    """A file in the form of wave 7: the k-th country answers near the k-th level of each item."""
    rng = np.random.default_rng(1)
    rows = []
    for k, c in enumerate(countries):
        for i in range(n):
            row = {COUNTRY: c, "Q262": 20 + i % 60, "W_WEIGHT": 1.0}
            row |= {q: max(1, round(1 + k + rng.normal(0, 0.1))) for item in ITEMS.values() for q in item.columns}
            rows.append(row)
    return pd.DataFrame(rows)


def test_generic_personas_know_a_name_and_an_age():
    panel = PersonaPanel.generic("VNM")
    assert len(panel) == 4
    assert not panel.grounded
    assert all("Vietnam" in t for t in panel.texts)
    assert len(set(panel.texts)) == 4


def test_personas_of_a_survey(tmp_path):
    table = survey()
    table.loc[0, "Q164"] = -1  # no answer
    table.to_csv(tmp_path / "wvs.csv", index=False)
    low = PersonaPanel.from_wvs(tmp_path / "wvs.csv", "VNM")  # the least of what large numbers mean
    high = PersonaPanel.from_wvs(tmp_path / "wvs.csv", "EGY")
    assert low.grounded
    assert len(low) == 4
    assert all("much less religious" in t for t in low.texts)
    assert all("much more religious" in t for t in high.texts)
    assert all("much more trusting" in t for t in low.texts)  # reversed in the survey
    assert "younger than 36" in low.texts[0]


def test_weights_of_a_survey_count(tmp_path):
    table = survey()
    own = table[COUNTRY] == "VNM"
    half = own & (np.arange(len(table)) % 2 == 0)
    table.loc[half, "Q164"] = 10
    table.loc[half, "W_WEIGHT"] = 1e6
    table.to_csv(tmp_path / "wvs.csv", index=False)
    assert "much more religious" in PersonaPanel.from_wvs(tmp_path / "wvs.csv", "VNM").texts[-1]


@pytest.mark.parametrize(
    ("change", "country", "error", "says"),
    [
        (lambda t: t.drop(columns=["Q164", "Q57"]), "VNM", ValueError, "no columns Q164, Q57"),
        (lambda t: t, "FRA", KeyError, "it holds BRA, DEU"),
        (lambda t: t[t[COUNTRY].isin(["VNM", "USA"])], "VNM", ValueError, "holds 2 countries"),
        (lambda t: t[(t[COUNTRY] != "VNM") | (t["Q262"] < 36)], "VNM", ValueError, "no respondent of VNM is between"),
    ],
)
def test_surveys_that_do_not_do(tmp_path, change, country, error, says):
    change(survey()).to_csv(tmp_path / "wvs.csv", index=False)
    with pytest.raises(error, match=says):
        PersonaPanel.from_wvs(tmp_path / "wvs.csv", country)


# --- sources ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm():
    return models.load()


def test_a_shared_prefix_changes_no_probability(lm):
    import torch

    source = LocalSource(lm.model, lm.tokenizer)
    texts = [
        prompt("Whom should it save?", ["a man", "a dog"]),
        prompt("Pick one of these two, please.", ["tea", "a cup of coffee"]),
    ]
    for system in ("", "You are a person from Vietnam."):
        found = source.label_logprobs(system, texts, "AB")
        for text, row in zip(texts, found, strict=True):
            ids = [*source._start(), *(source._ids(system + "\n\n") if system else []), *source._ids(text)]
            with torch.no_grad():
                logits = lm.model(torch.tensor([ids])).logits[0, -1].double()
            np.testing.assert_allclose(row, logits.log_softmax(-1)[source.labels("AB")], atol=1e-3)


def test_labels_that_begin_alike(lm):
    with pytest.raises(ValueError, match=r"begin with the same token.*choose others"):
        LocalSource(lm.model, lm.tokenizer).labels(["A", "A"])


def test_a_model_with_its_tokenizer(lm):
    disca = DISCA(lm.model, PANEL, tokenizer=lm.tokenizer)
    found = disca.decide("Whom should it save?", ["a man", "a dog"])
    assert 0 < found.probabilities[0] < 1
    assert found.mass > 0.5
    with pytest.raises(TypeError, match="with tokenizer="):
        DISCA(lm.model, PANEL).decide("Whom?", ["a", "b"])


def test_sampling_leaves_the_generator_alone(lm):
    import torch

    source = LocalSource(lm.model, lm.tokenizer)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = source.sample("", "The dog", 2, 4, seed=1)
    assert (torch.get_rng_state() == before).all()
    assert source.sample("", "The dog", 2, 4, seed=1) == first


class Told:
    """What an endpoint answers, without a server."""

    base_url, name, timeout = "http://127.0.0.1:1/v1", "tiny", 1.0

    def __init__(self, top=(), texts=()):
        self.top, self.texts = list(top), iter(texts)

    def top_logprobs(self, messages):
        assert messages[-1]["role"] == "user"
        return self.top

    def chat(self, messages, max_new_tokens, temperature):
        from gnomon.models import Completion

        return Completion(next(self.texts), None, None)


def endpoint(n_samples=0, **told):
    source = EndpointSource(models.Endpoint.from_ref("endpoint:http://127.0.0.1:1/v1#tiny"), n_samples)
    source.endpoint = Told(**told)
    return source


def test_endpoint_tokens_are_gathered_by_label():
    found = endpoint(top=[(" A", -1.0), ("A", -2.0), ("B.", -3.0), ("x", -0.1)]).label_logprobs("", ["?"], "ABC")
    np.testing.assert_allclose(found, [[np.logaddexp(-1, -2), -3.0, -20.0]])
    with pytest.raises(ValueError, match=r"gives no log-probabilities.*n_samples"):
        endpoint().label_logprobs("", ["?"], "AB")


def test_endpoint_answers_are_counted():
    found = endpoint(n_samples=4, texts=["A", "a)", "A.", "A"]).label_logprobs("p", ["?"], "AB")
    assert found[0, 0] - found[0, 1] == pytest.approx(math.log(4.5 / 0.5))


def test_an_endpoint_that_is_not_there():
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:1"):
        DISCA("endpoint:http://127.0.0.1:1/v1#tiny", PANEL).decide("Whom?", ["a man", "a dog"])


# --- baselines -------------------------------------------------------------------------------------------------------


def test_rules_on_gaps():
    d0, panel = np.array([2.0, -0.5]), np.array([[1.0, 3.0, -1.0, 1.0], [0.0, -1.0, -1.0, -2.0]])
    np.testing.assert_array_equal(baselines.vanilla(d0, panel), d0)
    np.testing.assert_allclose(baselines.panel_mean(d0, panel), [1.0, -1.0])
    np.testing.assert_allclose(baselines.panel_majority(d0, panel), [math.log(3.5 / 1.5), math.log(1 / 4)])
    np.testing.assert_allclose(baselines.tempered(d0, panel), d0 / 2)
    np.testing.assert_allclose(baselines.clipped(d0, panel), [1.0, -0.5])
    many = baselines.self_consistency(np.zeros(2000) + 1.0, np.zeros((2000, 2)), n=400)
    assert many.mean() == pytest.approx(1.0, abs=0.02)
    for call in (lambda: baselines.tempered(d0, panel, 0), lambda: baselines.clipped(d0, panel, 0),
                 lambda: baselines.self_consistency(d0, panel, 0)):  # fmt: skip
        with pytest.raises(ValueError, match="got 0"):
            call()


@pytest.fixture(scope="module")
def tiny(lm):
    """Two blocks of the embedded model: enough for hooks and gradients."""
    from transformers import LlamaForCausalLM

    config = type(lm.model.config)(**{**lm.model.config.to_dict(), "num_hidden_layers": 2, "layer_types": None})
    import torch

    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def test_steering_by_nothing_changes_nothing(tiny, lm):
    disca = DISCA(tiny, PANEL, tokenizer=lm.tokenizer)
    asked = [("Whom should it save?", ["a man", "a dog"]), ("Which?", ["tea", "milk"])]
    logs = disca.read("", asked).logs
    np.testing.assert_allclose(
        baselines.steered_gaps(disca, "VNM", asked, scale=0.0), logs[:, 0] - logs[:, 1], atol=1e-4
    )
    moved = baselines.steered_gaps(disca, "VNM", asked, scale=4.0)
    assert np.abs(moved - (logs[:, 0] - logs[:, 1])).max() > 1e-4
    with pytest.raises(ValueError, match="layer: got 9"):
        baselines.steered_gaps(disca, "VNM", asked, layer=9)
    with pytest.raises(TypeError, match="need the weights"):
        baselines.steered_gaps(DISCA(Stub(), PANEL), "VNM", asked)


def test_fine_tuning_goes_where_people_are(tiny, lm):
    disca = DISCA(tiny, PANEL, tokenizer=lm.tokenizer)
    asked = [("Whom should it save?", ["a man", "a dog"])]
    before = {n: p.clone() for n, p in tiny.state_dict().items()}
    logs = disca.read("", asked).logs
    base = logs[0, 0] - logs[0, 1]
    gaps = [baselines.fine_tuned_gaps(disca, asked, [target], asked, steps=8)[0] for target in (0.95, 0.05)]
    assert gaps[0] > base > gaps[1]
    assert all((before[n] == p).all() for n, p in tiny.state_dict().items())  # the model itself stays
    with pytest.raises(ValueError, match="expected 1 probabilities"):
        baselines.fine_tuned_gaps(disca, asked, [0.5, 0.5], asked)


def test_questions_of_a_file_without_any():
    from gnomon.decisions.disca.scenarios import read_questions

    with pytest.raises(ValueError, match="holds none"):
        read_questions([])

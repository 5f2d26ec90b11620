"""SpaceR: the rule against its statement, its laws by Monte Carlo, merging, bytes, memory, bad input."""

from __future__ import annotations

import collections
import functools
import math
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gnomon.sampling import SpaceR, spacer_estimate, spacer_partitioned
from gnomon.sampling.spacer.coins import below
from gnomon.sampling.spacer.reference import NaiveSpaceR

RULES = ["inverse", "always", "unbiased", "hold"]
streams = st.lists(st.integers(0, 12), max_size=60)
weighted = st.lists(st.tuples(st.integers(-3, 12), st.integers(1, 9)), max_size=60)


def zipf(length: int, n: int, seed: int = 0, a: float = 1.2) -> np.ndarray:
    p = np.arange(1, n + 1) ** -a
    return np.random.default_rng(seed).choice(n, length, p=p / p.sum()).astype(np.int64)


def entries(table: SpaceR) -> dict:
    return {i: (c, o) for i, c, o in zip(*(a.tolist() for a in table.items()), strict=True)}


def naive(table: SpaceR, stream, **options) -> NaiveSpaceR:
    """The reference with the coins that this table starts from."""
    fresh = SpaceR(table.capacity, table.admission, table.random_state)
    slow = NaiveSpaceR(table.capacity, table.admission, tuple(fresh._rng.tolist()), **options)
    for item, weight in stream:
        slow.update(item, weight)
    return slow


# --- the fast path is the rule ---------------------------------------------------------------------------------------


@given(weighted, st.sampled_from(RULES), st.integers(1, 8), st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_heap_path_equals_naive_minimum_bit_for_bit(stream, rule, k, seed):
    table = SpaceR(k, rule, seed)
    for item, weight in stream:
        table.update(item, weight)
    assert {i: tuple(e) for i, e in naive(table, stream).entries.items()} == entries(table)


@pytest.mark.parametrize("rule", RULES)
def test_long_streams_of_arbitrary_ids_equal_the_reference(rule):
    """Many evictions from a crowded index: open addressing must lose nobody."""
    ids = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 400)
    stream = ids[zipf(6_000, 400)]
    table = SpaceR(60, rule, 7)
    table.update_many(stream)
    slow = naive(table, ((i, 1) for i in stream.tolist()))
    assert {i: tuple(e) for i, e in slow.entries.items()} == entries(table)
    assert [table.estimate(i) > 0 for i in ids.tolist()] == [i in slow.entries for i in ids.tolist()]


@given(weighted, st.sampled_from(RULES), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_update_many_is_update_on_each(stream, rule, k):
    one, many = SpaceR(k, rule, 1), SpaceR(k, rule, 1)
    for item, weight in stream:
        one.update(item, weight)
    half = len(stream) // 2
    for part in (stream[:half], stream[half:]):
        many.update_many([i for i, _ in part], [w for _, w in part])
    assert one.to_bytes() == many.to_bytes()
    assert one.n_seen_ == many.n_seen_ == sum(w for _, w in stream)


def test_single_updates_that_wait_are_seen_by_every_question():
    table = SpaceR(5, random_state=0)
    for i in range(700):
        table.update(i % 3)
        assert table.n_seen_ == i + 1
        assert table.estimate(i % 3) == i // 3 + 1
    table.update(0)
    assert len(table) == 3
    table.update(0)
    assert table.top(1) == [(0, 236)]
    table.update(0)
    assert entries(SpaceR.from_bytes(table.to_bytes()))[0] == (237, 0)
    table.update(7)
    table.update(8)
    assert table.min_count_ == 1


def test_text_and_bytes_count_as_their_integers_would_when_everything_fits():
    words = np.array(["a", "b", "a", "été", "a", "b"])
    for items in (words, list(words), np.char.encode(words, "utf-8"), words.astype(object)):
        table = SpaceR(3, random_state=0)
        table.update_many(items)
        assert [c for _, c in table.top()] == [3, 2, 1]
    assert table.top(1) == [("a", 3)]
    assert isinstance(table.top(1)[0][0], str)


@pytest.mark.parametrize(
    "texts", [["a", "a\0", "a\0b", ""], ["\ud800", "'\\ud800'"], ["é", "e", "\udc80"], [b"a", b"a\0"]]
)
def test_texts_that_differ_are_different_items(texts):
    """Text from a binary file has NULs, and C strings end there."""
    many, one = SpaceR(9, random_state=0), SpaceR(9, random_state=0)
    many.update_many(texts * 2)
    for text in texts * 2:
        one.update(text)
    assert many.top() == one.top() == [(text, 2) for text in sorted(texts)]
    assert many.to_bytes() == one.to_bytes()


def test_names_of_text_items_survive_many_evictions():
    stream = [f"w{i}" for i in zipf(20_000, 3000).tolist()]
    table = SpaceR(50, random_state=0)
    for start in range(0, 20_000, 500):
        table.update_many(stream[start : start + 500])
    for word in stream[:3000]:
        table.update(word)
    items, counts, _ = table.items()
    assert len(set(items)) == 50
    assert table.estimate_many(items).tolist() == counts.tolist()
    assert len(table._names) <= 100


# --- hand cases and laws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_exact_without_a_coin_while_everything_fits(rule):
    stream = zipf(2000, 20)
    table = SpaceR(20, rule, 3)
    before = table._rng.copy()
    table.update_many(stream)
    assert table.estimate_many(np.arange(20)).tolist() == np.bincount(stream, minlength=20).tolist()
    assert (table._rng == before).all()
    assert table.lower(0) == table.estimate(0)
    assert table.std(0) == 0


def test_one_entry_one_newcomer_is_a_fair_coin():
    took = 0
    for seed in range(4000):
        table = SpaceR(1, random_state=seed)
        table.update_many([1, 2])
        assert entries(table) in ({1: (1, 0)}, {2: (2, 1)})
        took += table.estimate(2) == 2
    assert stats.binomtest(took, 4000).pvalue > 1e-4


def test_one_entry_waits_geometrically_and_is_unbiased_for_every_length():
    """The j-th copy is admitted with probability 2^-j and then reads L + 2 - j, so the mean is L."""
    length, seeds = 6, 20_000
    stream = np.array([1] + [2] * length)
    estimates = np.empty(seeds)
    for seed in range(seeds):
        table = SpaceR(1, random_state=seed)
        table.update_many(stream)
        estimates[seed] = table.estimate(2)
    seen = [int((estimates == length + 2 - j).sum()) for j in range(1, length + 1)] + [int((estimates == 0).sum())]
    assert sum(seen) == seeds
    expected = seeds * np.array([2.0**-j for j in range(1, length + 1)] + [2.0**-length])
    assert stats.chisquare(seen, expected).pvalue > 1e-4
    assert abs(estimates.mean() - length) < 4 * estimates.std() / math.sqrt(seeds)


@given(weighted, st.integers(1, 6), st.sampled_from(RULES[:3]), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_invariants_after_every_update(stream, k, rule, seed):
    table, truth, n, least = SpaceR(k, rule, seed), collections.Counter(), 0, 0
    for item, weight in stream:
        table.update(item, weight)
        truth[item] += weight
        n += weight
        found = entries(table)
        assert len(table) == len(found) <= k
        assert table.min_count_ >= least
        least = table.min_count_
        total = sum(c for c, _ in found.values())
        assert total == n if rule != "inverse" else total <= n
        for i, (count, offset) in found.items():
            assert table.lower(i) == count - offset <= truth[i]
            if rule != "unbiased":
                assert count - truth[i] <= offset <= table.min_count_
            if rule == "always":
                assert truth[i] <= count <= truth[i] + n / k


@pytest.mark.parametrize("rule", ["unbiased", "hold"])
def test_unbiased_rules_are_unbiased_for_every_item(rule):
    stream = zipf(300, 30, a=0.8)
    truth = np.bincount(stream, minlength=30)
    found = np.empty((5000, 30))
    for seed in range(5000):
        table = SpaceR(6, rule, seed)
        table.update_many(stream)
        found[seed] = table.estimate_many(np.arange(30))
    error = found.std(0) / math.sqrt(5000)
    assert (np.abs(found.mean(0) - truth) <= 4.5 * error).all()


def test_unbiased_rule_is_unbiased_with_weights():
    stream = zipf(60, 12, a=0.8)
    weights = np.random.default_rng(3).integers(1, 7, 60)
    truth = np.bincount(stream, weights, 12)
    found = np.empty((3000, 12))
    for seed in range(3000):
        table = SpaceR(4, "unbiased", seed)
        table.update_many(stream, weights)
        found[seed] = table.estimate_many(np.arange(12))
    assert (np.abs(found.mean(0) - truth) <= 4.5 * found.std(0) / math.sqrt(3000)).all()


def test_inverse_loses_the_mass_of_what_it_evicts():
    """It is too low overall: the counts sum to about 0.6 N on 30 items with k = 6."""
    stream = zipf(300, 30, a=0.8)
    sums = []
    for seed in range(400):
        table = SpaceR(6, random_state=seed)
        table.update_many(stream)
        sums.append(table.items()[1].sum() / 300)
    assert 0.4 < np.mean(sums) < 0.8


def test_inverse_gains_w_in_expectation_at_every_arrival():
    """For an untracked item of weight w: probability w / (m + w) of reading m + w."""
    gains = np.empty(8000)
    for seed in range(8000):
        table = SpaceR(2, random_state=seed)
        table.update_many([1, 2, 3], [9, 11, 5])
        gains[seed] = table.estimate(3)
    assert set(gains) == {0, 14}
    assert abs(gains.mean() - 5) < 4 * gains.std() / math.sqrt(8000)


def misra_gries(stream, counters: int) -> dict:
    found: dict = {}
    for item in stream:
        if item in found or len(found) < counters:
            found[item] = found.get(item, 0) + 1
        else:
            found = {i: c - 1 for i, c in found.items() if c > 1}
    return found


@given(streams, st.integers(2, 6))
@settings(max_examples=150, deadline=None)
def test_always_is_space_saving_and_contains_misra_gries(stream, k):
    table, counts = SpaceR(k, "always", 0), {}
    table.update_many(stream)
    for item in stream:  # Metwally's rule on a dict, first minimum
        if item not in counts and len(counts) == k:
            victim = min(counts, key=counts.get)
            counts[item] = counts.pop(victim)
        counts[item] = counts.get(item, 0) + 1
    found = {i: c for i, (c, _) in entries(table).items()}
    assert sorted(found.values()) == sorted(counts.values())
    least = table.min_count_
    assert {i: c - least for i, c in found.items() if c > least} == misra_gries(stream, k - 1)


def same_law(first: list, second: list) -> float:
    """p-value of a two-sample chi-square; outcomes seen fewer than 20 times are pooled."""
    a, b = collections.Counter(first), collections.Counter(second)
    cells = [(a[o], b[o]) for o in a | b if a[o] + b[o] >= 20]
    cells.append((len(first) - sum(x for x, _ in cells), len(second) - sum(y for _, y in cells)))
    return stats.chi2_contingency([c for c in cells if sum(c)]).pvalue


def test_skipping_and_tossing_follow_one_law_and_so_does_relabelling():
    stream = zipf(40, 8, seed=3, a=0.7)
    fast, tossed, renamed = [], [], []
    for seed in range(5000):
        table, other = SpaceR(3, random_state=seed), SpaceR(3, random_state=50_000 + seed)
        table.update_many(stream)
        fast.append(frozenset((i, c) for i, (c, _) in entries(table).items()))
        other.update_many(10**12 - 77 * stream)
        renamed.append(frozenset(((10**12 - i) // 77, c) for i, (c, _) in entries(other).items()))
    for seed in range(5000):
        slow = NaiveSpaceR(3, "inverse", (seed * 2**40 + 1, seed * 7919), skip=False)
        for item in stream.tolist():
            slow.update(item)
        tossed.append(frozenset((i, c) for i, (c, _) in slow.entries.items()))
    assert len(set(fast)) > 30
    assert same_law(fast, tossed) > 1e-4
    assert same_law(fast, renamed) > 1e-4


def test_ties_for_the_minimum_are_broken_uniformly():
    gone = collections.Counter()
    for seed in range(4000):
        table = SpaceR(4, "always", seed)
        table.update_many([1, 2, 3, 4, 5])
        gone.update({1, 2, 3, 4} - set(entries(table)))
    assert stats.chisquare([gone[i] for i in (1, 2, 3, 4)]).pvalue > 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_weight_is_repetition_for_tracked_items(rule):
    one, many = SpaceR(3, rule, 0), SpaceR(3, rule, 0)
    one.update_many([1, 2, 3])
    many.update_many([1, 2, 3])
    one.update(2, 1000)
    many.update_many([2] * 1000)
    assert one.to_bytes() == many.to_bytes()


def test_weights_of_hold_are_unit_arrivals_in_law():
    heavy, units = [], []
    for seed in range(3000):
        one, many = SpaceR(2, "hold", seed), SpaceR(2, "hold", 50_000 + seed)
        one.update_many([1, 2, 3, 4, 1], [3, 2, 4, 2, 2])
        many.update_many(np.repeat([1, 2, 3, 4, 1], [3, 2, 4, 2, 2]))
        for table, found in ((one, heavy), (many, units)):
            found.append(frozenset((i, c) for i, (c, _) in entries(table).items()))
    assert same_law(heavy, units) > 1e-4


def test_integer_coins_are_fair_where_floats_would_not_be():
    rng = np.array([5], np.uint64)
    bound = 3 * 2**61
    thirds = [below(bound, rng) // 2**61 for _ in range(6000)]
    assert stats.chisquare(np.bincount(thirds, minlength=3)).pvalue > 1e-4
    table = SpaceR(1, random_state=0)
    table.update(1, 2**61)
    table.update(2, 2**61)
    assert entries(table) in ({1: (2**61, 0)}, {2: (2**62, 2**61)})
    with pytest.raises(ValueError, match="above 2\\^62"):
        table.update(3, 2)


def test_a_light_newcomer_hardly_ever_replaces_a_heavy_item():
    """The number of misses to skip, near m = 2^61 on average, may exceed an int64."""
    for seed in range(500):
        table = SpaceR(1, random_state=seed)
        table.update(1, 2**61)
        table.update_many([2, 2, 2])
        assert table.top() == [(1, 2**61)]


def test_a_table_at_the_limit_of_its_weights_is_still_bytes():
    table = SpaceR(1, random_state=0)
    table.update(1, 2**62)
    table.update(1)
    assert SpaceR.from_bytes(table.to_bytes()).top() == table.top()


def test_std_is_the_spread_of_what_was_missed():
    table = SpaceR(1, random_state=0)
    table.update_many([1] * 5 + [2] * 500)
    assert table.lower(2) == table.estimate(2) - 5
    assert table.std(2) == math.sqrt(30)
    assert math.isnan(table.std(1))
    spread = []
    for seed in range(3000):
        table = SpaceR(1, random_state=seed)
        table.update_many([1] * 5 + [2] * 200)
        spread.append(table.estimate(2) - 200)
    assert np.std(spread) == pytest.approx(math.sqrt(30), rel=0.08)


# --- asking ----------------------------------------------------------------------------------------------------------


def test_top_falls_by_count_and_ties_by_item():
    table = SpaceR(10, random_state=0)
    table.update_many(["c", "b", "a", "c", "d", "b"])
    assert table.top() == [("b", 2), ("c", 2), ("a", 1), ("d", 1)]
    assert table.top(0) == []
    assert table.top(2) == [("b", 2), ("c", 2)]
    held = SpaceR(2, "hold", 0)
    held.update_many(zipf(500, 20))
    assert all(isinstance(c, float) and c == held.estimate(i) for i, c in held.top())


def test_empty_stream_knows_nothing():
    table = SpaceR(4, random_state=0)
    table.update_many([])
    assert table.estimate("x") == table.lower(3) == table.n_seen_ == len(table) == table.min_count_ == 0
    assert table.top(5) == []
    assert table.estimate_many([]).tolist() == []
    assert table.estimate_many(["a", "b"]).tolist() == [0, 0]
    assert [a.size for a in table.items()] == [0, 0, 0]


def test_one_call():
    stream = zipf(5000, 300)
    found = spacer_estimate(stream, 40, np.arange(300), random_state=4)
    table = SpaceR(40, random_state=4)
    table.update_many(stream)
    assert found.tolist() == table.estimate_many(np.arange(300)).tolist()
    assert spacer_estimate(iter(stream.tolist()), 40, range(300), random_state=4).tolist() == found.tolist()


def test_streams_are_read_in_blocks_by_place_whatever_holds_them():
    stream = zipf(70_000, 30)
    truth = np.bincount(stream, minlength=30).tolist()
    timed = pd.Series(stream, index=np.arange(70_000) * 10.0)  # slicing it by numbers would go by time
    for kept in (stream, stream.tolist(), collections.deque(stream.tolist()), timed, (i for i in stream.tolist())):
        assert spacer_estimate(kept, 30, range(30)).tolist() == truth
    for wrong in ("text", None, 5):
        with pytest.raises(TypeError, match=f"items: got one {type(wrong).__name__}; expected a sequence"):
            spacer_estimate(wrong, 3, [1])
        with pytest.raises(TypeError, match="expected a sequence"):
            SpaceR(3).update_many(wrong)


# --- merging ---------------------------------------------------------------------------------------------------------

parts = st.tuples(streams, streams, st.integers(1, 6), st.sampled_from(RULES[:3]))


def pair(a, b, k, rule):
    left, right = SpaceR(k, rule, 1), SpaceR(k, rule, 2)
    left.update_many(a)
    right.update_many(b)
    return left, right


@given(parts)
@settings(max_examples=100, deadline=None)
def test_merging_commutes_changes_no_input_and_has_an_identity(drawn):
    left, right = pair(*drawn)
    before = left.to_bytes(), right.to_bytes()
    both = left.merge(right)
    assert entries(both) == entries(right.merge(left))
    assert (left.to_bytes(), right.to_bytes()) == before
    assert both.n_seen_ == left.n_seen_ + right.n_seen_
    assert len(both) <= both.capacity
    assert sum(c for c, _ in entries(both).values()) <= both.n_seen_
    truth = collections.Counter([*drawn[0], *drawn[1]])
    assert all(c - o <= truth[i] for i, (c, o) in entries(both).items())
    empty = SpaceR(left.capacity, left.admission, 9)
    assert entries(left.merge(empty)) == entries(empty.merge(left)) == entries(left)
    on, off = left.merge(empty), SpaceR.from_bytes(left.to_bytes())
    for table in (on, off):
        table.update_many(drawn[1])
    assert entries(on) == entries(off)  # the identity of what comes after, too


def test_merging_disjoint_tables_that_fit_is_exact():
    left, right = pair([1, 1, 2], [3, 4, 4, 4], 5, "inverse")
    assert left.merge(right).top() == [(4, 3), (1, 2), (2, 1), (3, 1)]
    assert left.merge(right, reduce="unbiased").top() == left.merge(right).top()


def test_merging_leaves_the_generator_of_its_owner_alone():
    rng = np.random.default_rng(0)
    table = SpaceR(3, random_state=rng)
    before = rng.bit_generator.state
    table.merge(SpaceR(3, random_state=1))
    assert rng.bit_generator.state == before


def test_partitions_that_cannot_be_merged_are_not_read():
    def read():
        raise AssertionError("read")

    for options in ({"admission": "hold"}, {"reduce": "some"}, {"capacity": 0}, {"random_state": "x"}):
        with pytest.raises(ValueError, match=r"hold|reduce|capacity|random_state"):
            spacer_partitioned([read, read], **{"capacity": 3, **options})


def test_merging_unbiased_tables_stays_unbiased():
    stream = zipf(400, 30, a=0.8)
    truth = np.bincount(stream, minlength=30)
    found = np.empty((3000, 30))
    for seed in range(3000):
        left, right = SpaceR(6, "unbiased", 2 * seed), SpaceR(6, "unbiased", 2 * seed + 1)
        left.update_many(stream[:150])
        right.update_many(stream[150:])
        both = left.merge(right, reduce="unbiased")
        assert sum(both.items()[1]) == 400
        found[seed] = both.estimate_many(np.arange(30))
    assert (np.abs(found.mean(0) - truth) <= 4.5 * found.std(0) / math.sqrt(3000)).all()


def test_partitions_on_any_backend_give_one_table():
    import dask
    import joblib

    stream = zipf(30_000, 2000)
    parts = np.array_split(stream, 5)
    table = spacer_partitioned(parts, 100, random_state=3)
    assert table.n_seen_ == 30_000
    assert {i for i, _ in table.top(10)} == set(range(10))
    with joblib.parallel_config(backend="threading", n_jobs=2):
        assert spacer_partitioned(parts, 100, random_state=3).to_bytes() == table.to_bytes()
    readers = [functools.partial(iter, part.tolist()) for part in parts]
    assert spacer_partitioned(readers, 100, random_state=3).top(20) == table.top(20)

    def summary(part, seed):
        own = SpaceR(100, random_state=seed)
        own.update_many(part)
        return own.to_bytes()

    seeds = np.random.SeedSequence(3).spawn(5)
    lazy = [dask.delayed(summary)(part, seed) for part, seed in zip(parts, seeds, strict=True)]
    tables = dask.compute(*lazy, scheduler="threads")
    merged = functools.reduce(SpaceR.merge, map(SpaceR.from_bytes, tables))
    assert merged.to_bytes() == table.to_bytes()
    assert len(spacer_partitioned([], 10)) == 0


# --- bytes and memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["int", "str", "bytes"])
def test_bytes_and_back_go_on_alike(rule, kind):
    make = {"int": int, "str": lambda i: f"wörd\udc80{i}", "bytes": lambda i: b"\xff%d" % i}[kind]
    stream = [make(i) for i in zipf(3000, 200).tolist()]
    table = SpaceR(20, rule, 5)
    table.update_many(stream[:1500])
    copy = SpaceR.from_bytes(table.to_bytes())
    assert copy.top() == table.top()
    assert copy.n_seen_ == table.n_seen_
    for t in (table, copy):
        t.update_many(stream[1500:])
    assert copy.to_bytes() == table.to_bytes()


def test_damaged_bytes_are_no_table():
    table = SpaceR(5, random_state=0)
    table.update_many([1, 2, 3])
    data = table.to_bytes()
    wrong = [b"", b"gnomon", data[:-1], data + b" ", b"x" + data[1:], data.replace(b"inverse", b"always!")]
    wrong += [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(0, len(data), 7)]
    for broken in wrong:
        with pytest.raises(ValueError, match="not a SpaceR table"):
            SpaceR.from_bytes(broken)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"capacity": 5', b'"capacity": 2'), (b'"counts": [1, 1, 1]', b'"counts": [1, 0, 1]'),
     (b'"skip": -1', b'"skip": -7'), (b'"items": [1, 2, 3]', b'"items": [1, 1, 3]'),
     (b'"kind": "int"', b'"kindred": 0'), (b'"n_seen": 3', b'"n_seen": -3'),
     (b'"offsets": [0, 0, 0]', b'"offsets": [0, 0]'), (b'"items": [1, 2, 3]', b'"items": [1, null, 3]')],
)  # fmt: skip
def test_forged_bytes_are_no_table(old, new):
    """A right checksum over what no table can hold must not reach the compiled code."""
    import zlib

    table = SpaceR(5, random_state=0)
    table.update_many([1, 2, 3])
    data = table.to_bytes()
    start = data.index(b"{")
    assert old in data
    text = data[start:].replace(old, new)
    with pytest.raises(ValueError, match="not a SpaceR table"):
        SpaceR.from_bytes(data[: start - 4] + zlib.crc32(text).to_bytes(4, "big") + text)


def test_memory_is_64_bytes_an_entry_and_flat_in_the_stream():
    SpaceR(10, random_state=0).update_many(zipf(100, 50))  # compiled
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = SpaceR(50_000, random_state=0)
        table.update_many(np.arange(60_000))
        entry = (tracemalloc.get_traced_memory()[0] - before) / 50_000
        block = zipf(50_000, 5000)
        table.update_many(block)
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            table.update_many(block)
        growth = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    assert entry <= 64
    assert growth < 100_000


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "7", None, True, 2**31 - 1])
def test_capacity_is_a_positive_integer(capacity):
    with pytest.raises(ValueError, match=f"capacity: got {capacity!r}"):
        SpaceR(capacity)


def test_admission_and_seed_are_checked():
    with pytest.raises(ValueError, match="admission: got 'maybe'"):
        SpaceR(3, "maybe")
    with pytest.raises(ValueError, match="random_state: got 'x'"):
        SpaceR(3, random_state="x")
    with pytest.raises(ValueError, match="random_state: got -1"):
        SpaceR(3, random_state=-1)


@pytest.mark.parametrize("weight", [0, -1, 0.5, math.nan, math.inf, 2.0**63])
def test_weights_are_positive_integers(weight):
    table = SpaceR(3, random_state=0)
    with pytest.raises(ValueError, match="deletions are not supported, use CountSketch"):
        table.update(1, weight)
    with pytest.raises(ValueError, match="weights must be positive"):
        table.update_many([1, 2], [1, weight])
    assert len(table) == table.n_seen_ == 0


def test_integer_valued_floats_are_weights_and_shapes_are_checked():
    table = SpaceR(3, random_state=0)
    table.update_many([1, 2], [2.0, 3.0])
    table.update(1, 4.0)
    assert table.top() == [(1, 6), (2, 3)]
    with pytest.raises(ValueError, match="weights: got shape"):
        table.update_many([1, 2], [1])
    with pytest.raises(ValueError, match="one dimension"):
        table.update_many(np.ones((2, 2), int))


def test_kinds_do_not_mix():
    table = SpaceR(3, random_state=0)
    table.update(1)
    for wrong in ("a", b"a"):
        with pytest.raises(TypeError, match=f"type int; got {type(wrong).__name__}"):
            table.update(wrong)
        with pytest.raises(TypeError, match=f"type int; got {type(wrong).__name__}"):
            table.estimate_many([wrong])
    with pytest.raises(TypeError, match="mix int and str"):
        SpaceR(3).update_many([1, "a"])
    with pytest.raises(TypeError, match="mix str and bytes"):
        SpaceR(3).update_many(["a", b"a"])
    other = SpaceR(3)
    other.update("a")
    with pytest.raises(TypeError, match="str"):
        table.merge(other)


@pytest.mark.parametrize("item", [[1], {}, None, 1.5, True, np.float64(2)])
def test_other_items_are_refused(item):
    with pytest.raises(TypeError, match="items must be int, str or bytes"):
        SpaceR(3).update(item)
    with pytest.raises(TypeError):
        SpaceR(3).update_many([item, item])


def test_arrays_of_other_types_and_huge_ints_are_refused():
    for wrong in (np.array([1.0]), np.array([True]), np.array(["2020-01-01"], "M8[D]")):
        with pytest.raises(TypeError, match="items must be int, str or bytes"):
            SpaceR(3).update_many(wrong)
    with pytest.raises(TypeError, match="expected a sequence"):
        SpaceR(3).update_many("abc")
    table = SpaceR(3)
    table.update(5)
    for huge in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match=str(huge)):
            table.update(huge)
        with pytest.raises(ValueError, match=str(huge)):
            SpaceR(3).update_many([1, huge])
    with pytest.raises(ValueError, match="64 signed bits"):
        SpaceR(3).update_many(np.array([2**63], np.uint64))
    assert table.n_seen_ == 1


def test_only_like_tables_merge():
    with pytest.raises(ValueError, match="admission"):
        SpaceR(3).merge(SpaceR(3, "always"))
    with pytest.raises(ValueError, match="capacity is 4"):
        SpaceR(3).merge(SpaceR(4))
    with pytest.raises(ValueError, match="hold"):
        SpaceR(3, "hold").merge(SpaceR(3, "hold"))
    with pytest.raises(ValueError, match="reduce"):
        SpaceR(3).merge(SpaceR(3), reduce="some")
    with pytest.raises(TypeError, match="expected a SpaceR"):
        SpaceR(3).merge({})
    with pytest.raises(ValueError, match="n: got -1"):
        SpaceR(3).top(-1)

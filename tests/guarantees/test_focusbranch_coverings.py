"""Covering designs cover; families of subsets are joined and grown without gap or repetition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.guarantees import covering_design
from gnomon.guarantees.focusbranch import coverings, families
from gnomon.guarantees.focusbranch.families import Family


@pytest.mark.parametrize(("v", "l"), [(5, 1), (8, 2), (11, 2), (13, 3), (16, 2), (16, 3), (16, 4)])
@pytest.mark.parametrize("kind", ["auto", "projective", "groups", "greedy", "trivial"])
def test_every_subset_lies_in_a_block(v, l, kind):
    for k in sorted({l, l + 1, min(v, 2 * l), min(v, 3 * l), v}):
        if (kind == "trivial") != (k == l) or (
            kind == "projective" and k < v and coverings.smallest_projective(v, k, l) is None
        ):
            continue
        blocks = list(covering_design(v, k, l, kind, 0))
        assert max(map(len, blocks)) <= k
        assert min(map(len, blocks)) >= l
        assert len(blocks) >= coverings.schonheim(v, k, l)
        held = {s for b in blocks for s in itertools.combinations(b.tolist(), l)}
        assert len(held) == math.comb(v, l)
        assert coverings.uncovered(blocks, v, l) is None
        for block in blocks:
            assert (np.diff(block) > 0).all()


@pytest.mark.parametrize(("v", "k", "l"), [(64, 20, 2), (64, 9, 3), (784, 100, 2), (784, 60, 3)])
def test_sampled_subsets_of_large_designs_lie_in_a_block(v, k, l):
    blocks = list(covering_design(v, k, l, random_state=1))
    assert max(map(len, blocks)) <= k
    holds = np.zeros((v, len(blocks)), bool)
    for i, block in enumerate(blocks):
        holds[block, i] = True
    rng = np.random.default_rng(0)
    for _ in range(3000):
        assert holds[rng.choice(v, l, replace=False)].all(0).any()
    assert len(blocks) <= 1.1 * coverings.covering_size(v, k, l)


def test_projective_geometry():
    for dimension, q, points, members in ((2, 7, 57, 8), (3, 5, 156, 31), (2, 2, 7, 3)):
        blocks = list(coverings.hyperplanes(dimension, q))
        assert len(blocks) == points == coverings.points_of(dimension, q)
        assert {len(b) for b in blocks} == {members}
        if points < 60:
            assert coverings.uncovered(blocks, points, dimension) is None
    lines = list(coverings.flats(3, 2, 3))
    assert len(lines) == coverings.count_flats(3, 2, 3) == 130
    assert {len(b) for b in lines} == {4}
    assert coverings.uncovered(lines, 40, 2) is None
    same = {tuple(b) for b in coverings.flats(2, 2, 3)}
    assert same == {tuple(b) for b in coverings.hyperplanes(2, 3)}


def test_sizes_of_induced_blocks():
    """Their mean is v (q^t - 1) / (q^(t + 1) - 1)."""
    sizes = [len(b) for s in range(20) for b in coverings.projective(40, 40, 2, 11, np.random.default_rng(s))]
    assert np.mean(sizes) == pytest.approx(40 * (11**2 - 1) / (11**3 - 1), abs=0.6)  # those below 2 are dropped


def test_group_unions():
    blocks = list(coverings.groups(20, 8, 2))
    assert len(blocks) == math.comb(5, 2)
    assert {len(b) for b in blocks} == {8}


def test_designs_are_drawn_by_their_seed():
    a, b, c = ([x.tolist() for x in covering_design(30, 8, 2, random_state=s)] for s in (0, 0, 1))
    assert a == b
    assert a != c


def test_files_of_blocks(tmp_path):
    path = tmp_path / "C_7_3_2.txt"
    path.write_text("\n".join(" ".join(str(p + 1) for p in b) for b in coverings.hyperplanes(2, 2)) + "\n")
    assert len(list(covering_design(7, 3, 2, path))) == 7
    path.write_text("1 2 3\n4 5 6\n")
    with pytest.raises(ValueError, match=r"no block holds \[1, 4\]"):
        coverings.read_covering(path, 6, 2)
    path.write_text("1 2 x\n")
    with pytest.raises(ValueError, match="line 1"):
        coverings.read_covering(path, 6, 2)
    path.write_text("1 2 9\n")
    with pytest.raises(ValueError, match=r"points in 1..6"):
        coverings.read_covering(path, 6, 2)


@pytest.mark.parametrize(("arguments", "message"), [
    ((5, 6, 2), "expected 0 <= l <= k <= v"),
    ((5, 2, 3), "expected 0 <= l <= k <= v"),
    ((5, 2.0, 1), "k: got 2.0"),
    ((5, 3, 2, "best"), "kind: got 'best'"),
    ((60, 9, 2, "greedy"), "v <= 40"),
])  # fmt: skip
def test_what_is_no_design(arguments, message):
    with pytest.raises(ValueError, match=message):
        covering_design(*arguments)


# --- families --------------------------------------------------------------------------------------------------------


@given(st.integers(3, 7), st.integers(1, 3), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_joins_and_shadows(v, l, seed):
    rng = np.random.default_rng(seed)
    every = np.array(list(itertools.combinations(range(v), l)))
    family = Family(v, l, every[rng.random(len(every)) < 0.6])
    own = {tuple(s) for s in family.sets.tolist()}
    faces = {w: [tuple(p for p in w if p != q) for q in w] for w in itertools.combinations(range(v), l + 1)}
    for found, wanted in ((families.joined(family), {w for w, f in faces.items() if own.issuperset(f)}),
                          (families.shadow(family), {w for w, f in faces.items() if own.intersection(f)})):  # fmt: skip
        got = [tuple(s) for chunk in found for s in chunk.tolist()]
        assert len(got) == len(set(got))
        assert set(got) == wanted
    blocks = rng.random((4, v)) < 0.6
    got = [tuple(s) for chunk in families.within(blocks, l) for s in chunk.tolist()]
    assert len(got) == len(set(got))
    assert set(got) == {s for s in map(tuple, every.tolist()) if any(b[list(s)].all() for b in blocks)}


def test_families_with_keys_too_large_for_an_integer():
    rng = np.random.default_rng(0)
    sets = np.sort(np.stack([rng.choice(5000, 8, replace=False) for _ in range(50)]), 1)
    family = Family(5000, 8, sets[:30])
    family.add(sets[20:40])
    assert len(family) == 40
    assert family.has(sets).tolist() == [True] * 40 + [False] * 10


def test_batches_keep_every_row():
    chunks = [np.arange(n)[:, None] + 100 * i for i, n in enumerate((3, 0, 7, 1, 12))]
    found = list(families.batches(iter(chunks), 5))
    assert [len(f) for f in found] == [5, 5, 5, 5, 3]
    assert (np.concatenate(found) == np.concatenate(chunks)).all()


def test_lift_and_shadow_cover_every_change():
    """v = 6, t = 3: every set C of changed pixels of an open node lies in a child."""
    v, t = 6, 3

    def holds(changed, inside, l):
        return len(changed - inside) <= t - l

    every = [set(c) for n in range(t + 1) for c in itertools.combinations(range(v), n)]
    for l in range(t):
        for size in range(l, v + 1):
            for inside in map(set, itertools.combinations(range(v), size)):
                mine = [c for c in every if holds(c, inside, l)]
                rest = sorted(set(range(v)) - inside)
                for groups in (2, 3):
                    parts = [set(g.tolist()) for g in np.array_split(rest, groups)]
                    assert all(any(holds(c, inside | g, l + 1) for g in parts) for c in mine)
                if size == l:
                    assert all(any(holds(c, inside | {j}, l + 1) for j in rest) for c in mine)
                if l:
                    blocks = [
                        np.array(sorted(inside))[b] for b in covering_design(size, max(l, size // 2), l, random_state=0)
                    ]
                    assert all(any(holds(c, set(b.tolist()), l) for b in blocks) for c in mine)

"""Neighbours in blocks against full distance matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from gnomon.geometry import neighbors
from gnomon.geometry.neighbors import check_rows, cross_neighbors, distance_blocks, knn


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 64 rows, so that small sets cross their borders."""
    monkeypatch.setattr(neighbors, "BLOCK", 64)


def sets(n, m, D, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)) + offset, rng.normal(size=(m, D)) + offset


@pytest.mark.parametrize("D", [3, 40])
@pytest.mark.parametrize("k", [1, 4])
def test_knn_agrees_with_the_full_matrix(D, k):
    X, Y = sets(150, 333, D)
    distances, indices = knn(X, Y, k)
    full = cdist(X, Y)
    np.testing.assert_allclose(distances, np.sort(full, 1)[:, :k], rtol=1e-13)
    np.testing.assert_array_equal(indices, np.argsort(full, 1)[:, :k])


@pytest.mark.parametrize("D", [3, 40])
def test_a_set_against_itself_leaves_the_row_out(D):
    X, _ = sets(300, 1, D)
    X[50:60] = X[50]  # more duplicates than candidates
    full = cdist(X, X)
    np.fill_diagonal(full, np.inf)
    distances, indices = knn(X, k=3)
    np.testing.assert_allclose(distances, np.sort(full, 1)[:, :3], atol=1e-14)
    assert (indices != np.arange(300)[:, None]).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(13, 60), st.sampled_from([0.0, 1e3, 1e6]), st.sampled_from([1e-30, 1.0, 1e25]),
       st.sampled_from([np.float32, np.float64]))  # fmt: skip
def test_offsets_scales_and_near_duplicates_lose_no_digits(seed, D, offset, scale, dtype):
    rng = np.random.default_rng(seed)
    X = (scale * (rng.normal(size=(40, D)) + offset)).astype(dtype)
    Y = np.concatenate([X[:20], X[:20], X[:20], X[:20], scale * (rng.normal(size=(30, D)) + offset)]).astype(dtype)
    Y[20:40] = np.nextafter(Y[20:40], np.inf)
    distances, _ = knn(X, Y, 5)
    full = np.sqrt(((X[:, None].astype(float) - Y[None].astype(float)) ** 2).sum(-1))
    np.testing.assert_allclose(distances, np.sort(full, 1)[:, :5], rtol=1e-12)


def test_both_directions_and_balls_from_one_pass():
    X, Y = sets(150, 210, 30)
    full = cdist(X, Y)
    rx, ry = np.random.default_rng(1).uniform(5, 9, 150), np.random.default_rng(2).uniform(5, 9, 210)
    found = cross_neighbors(X, Y, 2, 3, radius_x=rx, radius_y=ry)
    np.testing.assert_allclose(found.x_distances, np.sort(full, 1)[:, :2])
    np.testing.assert_allclose(found.y_distances, np.sort(full, 0)[:3].T)
    np.testing.assert_array_equal(found.y_in_balls, (full < rx[:, None]).sum(0))
    np.testing.assert_array_equal(found.balls_filled, (full < rx[:, None]).sum(1))
    np.testing.assert_array_equal(found.x_in_balls, (full < ry).sum(1))


def test_a_point_on_the_sphere_is_outside():
    X, _ = sets(200, 1, 50)
    distances, _ = knn(X, k=5)
    found = cross_neighbors(X, X, radius_x=distances[:, -1])
    np.testing.assert_array_equal(found.balls_filled, 5)  # the centre and four neighbours, not the fifth


def test_single_precision_input_and_tensors_give_the_same():
    X, Y = sets(100, 120, 30)
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    expected = knn(X.astype(float), Y.astype(float), 3)
    for got in (knn(X, Y, 3), knn(torch.from_numpy(X), torch.from_numpy(Y), 3)):
        np.testing.assert_array_equal(got[1], expected[1])
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-12)


def test_distance_blocks_cover_the_matrix():
    X, Y = sets(90, 70, 5)
    out = np.full((90, 70), np.nan)
    for rows, block in distance_blocks(X, Y, megabytes=0.01):
        assert block.nbytes <= 10_486
        out[rows] = block
    np.testing.assert_allclose(out, cdist(X, Y), atol=1e-7)
    assert next(distance_blocks(X, Y, "cosine"))[1].shape == (90, 70)


def test_bad_input():
    X, Y = sets(10, 12, 4)
    with pytest.raises(ValueError, match=r"queries and refs .* \(10, 4\) and \(12, 3\)"):
        knn(X, Y[:, :3])
    with pytest.raises(ValueError, match="k: got 13; expected 1 to 12"):
        knn(X, Y, 13)
    with pytest.raises(ValueError, match="k: got 10; expected 1 to 9"):
        knn(X, k=10)
    Y[7, 2] = np.nan
    with pytest.raises(ValueError, match="refs: row 7 holds NaN"):
        knn(X, Y)
    with pytest.raises(ValueError, match="dimensions"):
        knn(X[0], Y)
    with pytest.raises(ValueError, match="radius"):
        cross_neighbors(X, X, radius_x=np.ones(3))
    with pytest.raises(ValueError, match=r"row 1 holds NaN"):
        check_rows(torch.tensor([[0.0], [float("inf")]]), "X")


def test_integers_half_precision_and_large_numbers_are_accepted():
    assert check_rows(np.array([[1, 2]]), "X").dtype == np.float64
    assert check_rows(np.ones((1, 2), np.float16), "X").dtype == np.float32
    assert check_rows(torch.ones((1, 2), dtype=torch.bfloat16), "X").dtype == torch.float32
    big = np.full((4, 20), 3e38, dtype=np.float32)  # the sum overflows, the entries are finite
    big[0] = -3e38
    assert knn(big, k=1)[0][1] == 0

"""FoSTA: forest kernels, semantic vectors, their transport, one affinity, one embedding."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gnomon.geometry.fosta import embedding as embeddings
from gnomon.geometry.fosta import semantic, transport
from gnomon.geometry.fosta.embedding import JointAffinity
from gnomon.geometry.fosta.forest import ForestKernel
from gnomon.geometry.fosta.labels import UNLABELLED, one_hot

Array = NDArray[np.float64]
EMBEDDERS = ("phate", "spectral", "umap")
UNLABELED = ("include", "exclude", "predict_shared")
AFFINITIES = ("product", "symmetric")
DOMAINS = ("a", "b")
LOPSIDED = 50


class LabelTransfer(NamedTuple):
    """Labels carried from one domain to the other.

    Attributes
    ----------
    labels : ndarray, shape (n,)
        The class with most votes; None where nothing voted.
    shares : ndarray, shape (n, C)
        Shares of the votes, zero where nothing voted.
    classes : ndarray, shape (C,)
    """

    labels: NDArray[Any]
    shares: Array
    classes: NDArray[Any]


class FoSTA(TransformerMixin, BaseEstimator):
    """Align two domains that share labels but neither features nor rows, by forest-guided semantic transport.

    Each domain gets a forest kernel (:class:`ForestKernel`) from its labelled rows; a row's similarity to each shared
    class is its semantic vector; optimal transport between these vectors couples the rows; kernels and coupling make
    one affinity, and PageRank-PHATE embeds it.

    Parameters
    ----------
    n_estimators : int
        Trees of each forest.
    kernel : {"gap", "original", "oob", "kerf", "euclidean"}
        See :class:`ForestKernel`.
    model : {"rf", "et"}
        Random forest or extremely randomised trees.
    prior_correct : bool
        Divide semantic vectors by the class priors of the labelled rows.
    norm : {"l2", "l1"}
        Of the semantic vectors.
    propagation : {None, "dpt"}
        See :func:`gnomon.geometry.fosta.semantic.semantic_vectors`.
    solver, unequal, leaf_size, hiref_init, reg, mass
        See :func:`gnomon.geometry.fosta.transport.semantic_coupling`.
    unlabeled : {"include", "exclude", "predict_shared"}
        Which unlabelled rows are coupled: all, none, or those whose predicted class is shared. Labelled rows are
        coupled where their class is shared.
    affinity : {"product", "symmetric"}
        Weights of the blocks within and between domains: 1 and mu, or 1 - mu and mu (then mu < 1; the official code's
        first version has 0.5).
    mu : float
        Positive.
    embedder : {"phate", "spectral", "umap"}
    t : int or "auto"
        Steps of the walk.
    beta : float
        Of the walk's restarts, in [0, 1].
    n_components : int
    landmarks : int
        Rows that are laid out in full when there are more, and that carry "dpt".
    missing : {"raise", "forest"}
        Whether NaN in the features is an error or left to the trees.
    n_jobs : int or None
        Threads that grow trees.
    random_state : int, RandomState or None
        Both forests start from the same seed, so that identical domains get identical forests.

    Attributes
    ----------
    embedding_a_, embedding_b_ : ndarray, shape (n_a, d), (n_b, d)
    coupling_ : csr_array, shape (n_a, n_b)
        Zero rows and columns where a row is not coupled.
    affinity_ : JointAffinity
        An operator; ``affinity_.toarray()`` gives all entries.
    semantic_a_, semantic_b_ : ndarray, shape (n_a, C), (n_b, C)
    shared_classes_ : ndarray, shape (C,)
    kernel_a_, kernel_b_ : ForestKernel
    t_ : int
        Steps taken (with "phate").

    References
    ----------
    Aumon, Lizotte, Wolf, Moon and Rhodes, Forest-Guided Semantic Transport for Label-Supervised Manifold Alignment,
    arXiv 2602.00974.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FoSTA(n_estimators=50, random_state=0)
    >>> model.fit_transform(X[:, :2], X[:, 2:], y, y).shape
    (300, 2)
    """

    def __init__(self, n_estimators: int = 300, *, kernel: str = "gap", model: str = "rf", prior_correct: bool = True,
                 norm: str = "l2", propagation: str | None = None, solver: str = "hiref", unequal: str = "surjection",
                 leaf_size: int = 256, hiref_init: str = "kmeans", reg: float = 0.05, mass: float = 0.9,
                 unlabeled: str = "include", affinity: str = "product", mu: float = 1.0, embedder: str = "phate",
                 t: int | str = "auto", beta: float = 0.7, n_components: int = 2, landmarks: int = 2000,
                 missing: str = "raise", n_jobs: int | None = None, random_state: Any = None):  # fmt: skip
        self.n_estimators, self.kernel, self.model = n_estimators, kernel, model
        self.prior_correct, self.norm, self.propagation = prior_correct, norm, propagation
        self.solver, self.unequal, self.leaf_size, self.hiref_init = solver, unequal, leaf_size, hiref_init
        self.reg, self.mass, self.unlabeled, self.affinity, self.mu = reg, mass, unlabeled, affinity, mu
        self.embedder, self.t, self.beta, self.n_components, self.landmarks = embedder, t, beta, n_components, landmarks
        self.missing, self.n_jobs, self.random_state = missing, n_jobs, random_state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        if hasattr(self, "coupling_"):
            parts = [f"{d}: {len(k.codes_)} rows, {int((k.codes_ == UNLABELLED).sum())} unlabelled"
                     for d, k in zip(DOMAINS, (self.kernel_a_, self.kernel_b_), strict=True)]  # fmt: skip
            text += f"  # {'; '.join(parts)}; {len(self.shared_classes_)} shared classes"
        return text

    # --- fitting -----------------------------------------------------------------------------------------------------

    def fit(self, XA: Any, XB: Any, yA: ArrayLike, yB: ArrayLike) -> FoSTA:
        """Align domain B with domain A.

        Parameters
        ----------
        XA, XB : array-like or sparse matrix, shape (n_a, D_a), (n_b, D_b)
            At least 10 rows each; features need have nothing in common.
        yA, yB : array-like, shape (n_a,), (n_b,)
            Labels of one vocabulary; None, NaN, -1 and "" mean unlabelled.

        Raises
        ------
        ValueError
            For a domain without labels, no shared class, fewer than 10 rows, NaN (unless ``missing="forest"``), too few
            trees, or an unknown option.
        FloatingPointError
            When the potential of the walk is not finite.

        Warns
        -----
        UserWarning
            For a class with one labelled row, and for domains of which one has more than 50 times the other's rows.
        """
        self._check_options()
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31))
        self._fit([XA, XB], [yA, yB], ["A", "B"], seed)
        self.kernel_a_, self.kernel_b_ = self._kernels
        self.semantic_a_, self.semantic_b_ = self._semantic[0]
        self.coupling_, self.shared_classes_ = self._couplings[0], self._shared[0]
        n = len(self.kernel_a_.codes_)
        self.embedding_a_, self.embedding_b_ = self._embedding[:n], self._embedding[n:]
        self._XB = XB
        return self

    def fit_transform(self, XA: Any, XB: Any, yA: ArrayLike, yB: ArrayLike) -> Array:  # type: ignore[override]
        """As :meth:`fit`; the embedding of A's rows, then B's: (n_a + n_b, d)."""
        self.fit(XA, XB, yA, yB)
        return np.vstack([self.embedding_a_, self.embedding_b_])

    def _check_options(self) -> None:
        for name, allowed in (("norm", semantic.NORMS), ("propagation", semantic.PROPAGATIONS),
                              ("solver", transport.SOLVERS), ("unequal", transport.UNEQUAL), ("unlabeled", UNLABELED),
                              ("hiref_init", tuple(transport.STEP_SIZE)), ("affinity", AFFINITIES),
                              ("embedder", EMBEDDERS)):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected one of {', '.join(map(str, allowed))}")
        most = 1.0 if self.affinity == "symmetric" else np.inf
        for name, ok, expected in (
            ("mu", 0 < self.mu < most, "a positive number (below 1 with affinity='symmetric')"),
            ("beta", 0 <= self.beta <= 1, "a number in [0, 1]"),
            ("t", self.t == "auto" or (isinstance(self.t, int | np.integer) and self.t >= 1), "'auto' or 1, 2, ..."),
            ("n_components", self.n_components >= 1, "at least 1"),
            ("landmarks", self.landmarks >= 10, "at least 10"),
            ("reg", self.reg > 0, "a positive number"),
            ("mass", 0 < self.mass <= 1, "a share in (0, 1]"),
            ("leaf_size", self.leaf_size >= 1, "at least 1"),
        ):
            if not ok:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected {expected}")

    def _fit(self, Xs: list[Any], ys: list[Any], names: list[str], seed: int) -> None:
        """All domains against the first one."""
        self._kernels = [self._kernel(X, y, name, seed) for X, y, name in zip(Xs, ys, names, strict=True)]
        sizes = [len(k.codes_) for k in self._kernels]
        for size, name in zip(sizes[1:], names[1:], strict=True):
            if max(size, sizes[0]) > LOPSIDED * min(size, sizes[0]):
                warnings.warn(f"{names[0]} has {sizes[0]} rows and {name} {size}: with more than {LOPSIDED} times the rows, "
                              "most of the larger domain meets few rows of the smaller", UserWarning, stacklevel=3)  # fmt: skip
        self._semantic, self._couplings, self._shared = [], [], []
        for other, name in zip(self._kernels[1:], names[1:], strict=True):
            vectors, plan, shared = self._couple(self._kernels[0], other, names[0], name, seed)
            self._semantic.append(vectors)
            self._couplings.append(plan)
            self._shared.append(shared)
        own = 1.0 - self.mu if self.affinity == "symmetric" else 1.0
        self.affinity_ = JointAffinity([k.kernel_ for k in self._kernels], self._couplings, self.mu, own)
        self._embedding = self._embed(seed)

    def _kernel(self, X: Any, y: Any, name: str, seed: int) -> ForestKernel:
        try:
            return ForestKernel(self.n_estimators, kernel=self.kernel, model=self.model, missing=self.missing,
                                n_jobs=self.n_jobs, random_state=seed).fit(X, y)  # fmt: skip
        except ValueError as error:
            raise ValueError(f"domain {name}: {error}") from error

    def _couple(self, a: ForestKernel, b: ForestKernel, name_a: str, name_b: str,
                seed: int) -> tuple[tuple[Array, Array], sparse.csr_array, NDArray[Any]]:  # fmt: skip
        shared = np.array([c for c in a.classes_ if c in set(b.classes_)], dtype=a.classes_.dtype)
        if not len(shared):
            raise ValueError(f"{name_a} and {name_b} share no class; their labels are {a.classes_.tolist()} and "
                             f"{b.classes_.tolist()}")  # fmt: skip
        rng = np.random.default_rng(seed)
        codes = [np.array([np.flatnonzero(k.classes_ == c)[0] for c in shared]) for k in (a, b)]
        vectors = [
            semantic.semantic_vectors(k.kernel_, k.codes_, own, prior_correct=self.prior_correct, norm=self.norm,
                                      propagation=self.propagation, landmarks=self.landmarks,
                                      rng=np.random.default_rng(seed))
            for k, own in zip((a, b), codes, strict=True)
        ]  # fmt: skip
        rows = [self._coupled(k, own) for k, own in zip((a, b), codes, strict=True)]
        part = transport.semantic_coupling(
            vectors[0][rows[0]], vectors[1][rows[1]], solver=self.solver, unequal=self.unequal,
            leaf_size=self.leaf_size, hiref_init=self.hiref_init, reg=self.reg, mass=self.mass, random_state=rng,
        ).tocoo()  # fmt: skip
        shape = (len(a.codes_), len(b.codes_))
        plan = sparse.csr_array((part.data, (rows[0][part.row], rows[1][part.col])), shape=shape)
        return (vectors[0], vectors[1]), plan, shared

    def _coupled(self, k: ForestKernel, shared: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows that take part in the transport."""
        take = np.isin(k.codes_, shared)
        if self.unlabeled == "include":
            take |= k.codes_ == UNLABELLED
        elif self.unlabeled == "predict_shared":
            take |= (k.codes_ == UNLABELLED) & np.isin(k.votes().argmax(1), shared)
        return np.flatnonzero(take)

    def _embed(self, seed: int) -> Array:
        W, options = self.affinity_, dict[str, Any](t=self.t, beta=self.beta)
        if self.embedder == "spectral":
            return embeddings.spectral(W, self.n_components)
        if self.embedder == "umap":
            return embeddings.umap(W, self.n_components, random_state=seed, **options)
        rng = np.random.default_rng(seed)
        found = embeddings.phate(W, self.n_components, landmarks=self.landmarks, rng=rng, **options)
        self.t_, self.entropy_ = found.t, found.entropy
        return found.embedding

    # --- using the alignment -----------------------------------------------------------------------------------------

    def transform(self, X: Any, domain: str = "a") -> Array:
        """Place new rows of a domain: each at the mean of the rows of both domains that it resembles.

        Parameters
        ----------
        X : array-like, shape (m, D)
        domain : {"a", "b"}
            Whose features these are.
        """
        weights, cross = self._query(X, domain)
        own, other = (self.embedding_a_, self.embedding_b_) if domain == "a" else (self.embedding_b_, self.embedding_a_)
        total = 1.0 + np.asarray(cross.sum(axis=1)).reshape(-1, 1)
        return np.asarray((weights @ own + cross @ other) / total)

    def _query(self, X: Any, domain: str) -> tuple[sparse.csr_array, sparse.csr_array]:
        """Similarities of new rows to the rows of their own domain (sum one) and, over the coupling, of the other."""
        check_is_fitted(self, "coupling_")
        if domain not in DOMAINS:
            raise ValueError(f"domain: got {domain!r}; expected 'a' or 'b'")
        kernel, T = (self.kernel_a_, self.coupling_) if domain == "a" else (self.kernel_b_, self.coupling_.T.tocsr())
        weights = kernel.query(X)
        return weights, sparse.csr_array(self.mu * (weights @ T))

    def transfer_labels(self, direction: str = "a->b") -> LabelTransfer:
        """Labels of one domain's rows from the labels of the other, by votes of the affinity between them.

        Parameters
        ----------
        direction : {"a->b", "b->a"}
            "a->b": A's labels vote on B's rows; labels of B play no part beyond the coupling.
        """
        check_is_fitted(self, "coupling_")
        if direction not in ("a->b", "b->a"):
            raise ValueError(f"direction: got {direction!r}; expected 'a->b' or 'b->a'")
        T = self.coupling_ if direction == "a->b" else self.coupling_.T.tocsr()
        source, target = (self.kernel_a_, self.kernel_b_)[:: 1 if direction == "a->b" else -1]
        return carried(source, target, T)

    def barycentric_map(self) -> Array:
        """Each row of A in B's features, as the mean of the rows of B it is coupled to: (n_a, D_b), NaN where none is."""
        check_is_fitted(self, "coupling_")
        if sparse.issparse(self._XB):
            features = self._XB.toarray()
        else:
            features = np.asarray(self._XB, dtype=np.float64)
        total = np.asarray(self.coupling_.sum(axis=1)).reshape(-1, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((self.coupling_ @ features) / total)

    # --- single cells ------------------------------------------------------------------------------------------------

    def fit_anndata(self, adata: Any, batch_key: str = "batch", label_key: str = "cell_type", *,
                    key_added: str = "X_fosta", use_rep: str | None = None, overwrite: bool = False) -> FoSTA:  # fmt: skip
        """Align the batches of an AnnData; the largest is the reference and every other one is coupled to it.

        Parameters
        ----------
        adata : AnnData
            Gets ``obsm[key_added]`` (the embedding), and ``obs[key_added + "_label"]`` and ``obs[key_added +
            "_share"]``: for each cell the label that the other batches vote for (the reference for the others, all
            others for the reference), and its share of the votes.
        batch_key, label_key : str
            Columns of ``obs``; batches two or more, labels missing (NaN) for some cells.
        key_added : str
        use_rep : str, optional
            An entry of ``obsm`` in place of ``X``.
        overwrite : bool
            Without it, keys that are there already are an error.

        Returns
        -------
        FoSTA
            With ``batches_`` (the reference first), ``couplings_`` and ``affinity_`` in the batches' order. With two
            batches all attributes and methods of :meth:`fit` work too: A is the reference.
        """
        self._check_options()
        for key in (batch_key, label_key):
            if key not in adata.obs:
                raise ValueError(f"adata.obs has no column {key!r}; it has {', '.join(map(str, adata.obs.columns))}")
        if use_rep is not None and use_rep not in adata.obsm:
            raise ValueError(f"adata.obsm has no entry {use_rep!r}; it has {', '.join(adata.obsm) or 'none'}")
        added = [f"{key_added}_label", f"{key_added}_share"]
        if not overwrite and (key_added in adata.obsm or set(added) & set(adata.obs)):
            raise ValueError(f"key_added: {key_added!r} is in adata already; expected a new key, or overwrite=True")
        batch = adata.obs[batch_key].astype("object")
        if batch.isna().any():
            raise ValueError(
                f"adata.obs[{batch_key!r}] lacks {int(batch.isna().sum())} values; expected a batch for each cell"
            )
        sizes = batch.value_counts(sort=True)
        if len(sizes) < 2:
            raise ValueError(f"adata.obs[{batch_key!r}] has {len(sizes)} batch; expected two or more")
        self.batches_ = list(sizes.index)
        rows = [np.flatnonzero(batch == name) for name in self.batches_]
        X = adata.X if use_rep is None else adata.obsm[use_rep]
        X = X.tocsr() if sparse.issparse(X) else np.asarray(X)
        labels = adata.obs[label_key].astype("object").to_numpy()
        if len(rows) == 2:
            self.fit(X[rows[0]], X[rows[1]], labels[rows[0]], labels[rows[1]])
        else:
            seed = int(check_random_state(self.random_state).randint(2**31))
            self._fit([X[r] for r in rows], [labels[r] for r in rows], [f"batch {b!r}" for b in self.batches_], seed)
        self.couplings_ = self._couplings
        Z = np.empty((adata.n_obs, self.n_components))
        Z[np.concatenate(rows)] = self._embedding
        transferred, share = self._all_transfers(rows, adata.n_obs)
        adata.obsm[key_added] = Z
        adata.obs[added[0]], adata.obs[added[1]] = transferred, share
        return self

    def _all_transfers(self, rows: list[NDArray[np.int64]], n: int) -> tuple[NDArray[Any], Array]:
        labels, share = np.full(n, None, dtype=object), np.zeros(n)
        reference = self._kernels[0]
        best = np.zeros(len(rows[0]))
        for place, other, T in zip(rows[1:], self._kernels[1:], self._couplings, strict=True):
            found = carried(reference, other, T)
            labels[place], share[place] = found.labels, found.shares.max(1)
            back = carried(other, reference, T.T.tocsr())
            surer = back.shares.max(1) > best
            best[surer] = back.shares.max(1)[surer]
            labels[rows[0][surer]] = back.labels[surer]
        share[rows[0]] = best
        return labels, share


def carried(source: ForestKernel, target: ForestKernel, T: sparse.csr_array) -> LabelTransfer:
    """Votes (K_t T' + T' K_s) Y of the source's labels Y on the target's rows over the coupling T (source, target)."""
    indicator = one_hot(source.codes_, len(source.classes_))
    votes = target.kernel_ @ (T.T @ indicator) + T.T @ (source.kernel_ @ indicator)
    total = votes.sum(1, keepdims=True)
    shares = np.divide(votes, total, out=np.zeros_like(votes), where=total > 0)
    labels = source.classes_[shares.argmax(1)].astype(object)
    labels[total[:, 0] == 0] = None
    return LabelTransfer(labels, shares, source.classes_)

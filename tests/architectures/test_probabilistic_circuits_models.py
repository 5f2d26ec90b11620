"""Next-token models, the Transformer, n-grams and the Chow-Liu tree."""

import math

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from gnomon.architectures import PCLanguageModel, vtree
from gnomon.architectures.probabilistic_circuits.baselines import (
    JointTransformer,
    KneserNey,
    chow_liu_tree,
    hmm_log_likelihood,
)
from gnomon.architectures.probabilistic_circuits.data import states

KINDS = [("hmm", h) for h in ("prob", "prob_untied", "logit", "logit_log")] + [
    (e, h) for e in ("transformer", "lstm") for h in ("prob", "logit")
]


@pytest.mark.parametrize(("encoder", "head"), KINDS)
def test_predictions_are_causal_and_normalised(encoder, head):
    lm = PCLanguageModel(7, 5, encoder, head, context=10, random_state=0)
    x = torch.randint(7, (3, 10), generator=torch.Generator().manual_seed(0))
    logs = lm(x)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(3, 10), atol=1e-4, rtol=0)
    later = x.clone()
    later[:, 6:] = (later[:, 6:] + 1) % 7
    torch.testing.assert_close(lm(later)[:, :7], logs[:, :7], atol=1e-5, rtol=1e-4)
    assert (lm(later)[:, 7:] - logs[:, 7:]).abs().max() > 1e-5
    again = PCLanguageModel(7, 5, encoder, head, context=10, random_state=1)
    again.load_state_dict(lm.state_dict())
    torch.testing.assert_close(again(x), logs)
    assert lm.is_circuit == ((encoder, head) == ("hmm", "prob"))


def test_the_circuit_is_the_hidden_markov_model():
    lm = PCLanguageModel(6, 4, context=12, random_state=0).double()
    initial, A, B = (p.detach().softmax(-1).numpy()
                     for p in (lm.encoder.initial, lm.encoder.transition, lm.encoder.emission))  # fmt: skip
    X = np.random.default_rng(0).integers(-1, 6, size=(20, 12))
    np.testing.assert_allclose(lm.marginal(X), hmm_log_likelihood(X, initial, A, B), atol=1e-10)


def test_probability_head_keeps_its_bounds():
    """(O1), (O2): rank and peaks of the conditionals, and the rank of the logarithms of a logit head."""
    x = torch.from_numpy(np.random.default_rng(0).integers(12, size=(60, 6)))
    for head in ("prob", "prob_untied"):
        lm = PCLanguageModel(12, 3, head=head, random_state=0).double()
        P = lm(x).exp().detach()[:, 1:].reshape(-1, 12)
        assert torch.linalg.matrix_rank(P, rtol=1e-10) == 3
        rows = (lm.encoder.emission if lm.experts is None else lm.experts).softmax(-1)
        assert P.max() <= rows.max() + 1e-12
        entropy = -(rows * rows.log()).sum(-1).min()
        assert (-(P * P.log()).sum(-1) >= entropy - 1e-10).all()
    for head, most in (("logit", 4), ("logit_log", 5)):
        lm = PCLanguageModel(12, 3, head=head, random_state=0).double()
        logs = lm(x).detach()[:, 1:].reshape(-1, 12)
        assert torch.linalg.matrix_rank(logs, rtol=1e-10) <= most
        assert torch.linalg.matrix_rank(logs.exp(), rtol=1e-10) > 5


@pytest.mark.parametrize("head", ["prob_untied", "logit", "logit_log"])
def test_only_a_circuit_has_marginals(head):
    lm = PCLanguageModel(6, 4, head=head)
    with pytest.raises(NotImplementedError, match="left-to-right conditionals only"):
        lm.log_prob([[0, -1, 2]])
    with pytest.raises(NotImplementedError, match="left-to-right"):
        lm.marginal([[0, 1, 2]])
    with pytest.raises(NotImplementedError, match="cannot leave a missing token out"):
        PCLanguageModel(6, 4, "transformer", "logit")(torch.tensor([[0, -1]]))


@pytest.mark.parametrize(("encoder", "head"), KINDS)
def test_learning(encoder, head):
    stream = np.tile([0, 1, 2, 3, 3, 2], 300)
    lm = PCLanguageModel(4, 8, encoder, head, d_model=8, context=16, random_state=0)  # wide enough to learn in 60 steps
    lm.fit(stream, n_steps=60, batch_size=8, length=16, random_state=0)
    assert lm.loss_curve_[-1] > lm.loss_curve_[0] + 0.2
    assert lm.log_prob(stream[:16][None]).shape == (1, 16)


def test_matched_parameters():
    target = PCLanguageModel(512, 64, head="logit").n_parameters
    untied = PCLanguageModel(512, 64, head="prob_untied").n_parameters
    assert abs(untied - target) <= 512
    for encoder in ("transformer", "lstm"):
        for R in (16, 64):
            goal = PCLanguageModel(512, R, head="logit").n_parameters
            for head in ("logit", "prob"):  # the head's own cost is counted: a Transformer's width is a multiple of 4
                found = PCLanguageModel(512, R, encoder, head, context=32).n_parameters
                assert abs(found / goal - 1) < (0.12 if encoder == "transformer" else 0.05), (encoder, R, head)


def test_generation_and_text():
    lm = PCLanguageModel(3, 4, random_state=0)
    drawn = lm.generate(4, 5, random_state=0)
    assert drawn.shape == (4, 5)
    assert (drawn == lm.generate(4, 5, random_state=0)).all()

    def tokenizer(text):
        return {"input_ids": [ord(c) - 97 for c in text]}

    lm.fit(["abcabcabc", "abc" * 30], tokenizer=tokenizer, n_steps=5, length=16)
    assert len(lm.loss_curve_) == 5
    with pytest.raises(ValueError, match=r"expected \[0, 3\)"):
        lm.fit("abcd", tokenizer=tokenizer)
    with pytest.raises(ValueError, match="expected integers"):
        lm.fit(np.array([0.5, 1.0]))


def test_distillation():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    teacher = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=32, n_embd=8, n_layer=1, n_head=1, bos_token_id=0,
                                         eos_token_id=0))  # fmt: skip
    with torch.no_grad():
        teacher.transformer.wte.weight *= 40
    lm = PCLanguageModel(8, 6, random_state=0).distil_from(teacher, n_windows=70, length=10, n_steps=30, random_state=0)
    assert lm.loss_curve_[-1] > lm.loss_curve_[0]
    with pytest.raises(ValueError, match="its vocabulary has 8 tokens; this model 9"):
        PCLanguageModel(9, 4).distil_from(teacher)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: PCLanguageModel(0), "vocab_size"),
        (lambda: PCLanguageModel(4, 4, "rnn"), "encoder 'rnn'"),
        (lambda: PCLanguageModel(4, 4, "hmm", "linear"), "head 'linear'"),
        (lambda: PCLanguageModel(4, 4, "transformer", "logit_log"), "with the encoder 'transformer'"),
        (lambda: PCLanguageModel(4, 4)(torch.tensor([[4]])), "expected symbols"),
        (lambda: PCLanguageModel(4, 4, context=3)(torch.zeros(1, 4, dtype=torch.long)), r"L in \[1, 3\]"),
        (lambda: PCLanguageModel(4, 4)(torch.zeros(1, 0, dtype=torch.long)), r"shape \(1, 0\)"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- baselines -------------------------------------------------------------------------------------------------------


def test_joint_transformer():
    rng = np.random.default_rng(0)
    x = rng.integers(3, size=(500, 1))
    X = np.column_stack([rng.integers(2, size=500), x, x])
    model = JointTransformer([2, 3, 3], width=16, n_layers=1).fit(X, n_steps=150, random_state=0)
    table = model.joint()
    assert math.isclose(table.sum(), 1, abs_tol=1e-5)
    np.testing.assert_allclose(np.log(table).ravel(), model.score_samples(states((2, 3, 3))), atol=1e-4)
    assert -model.score_samples(X).mean() < math.log(6) + 0.15
    assert (model.autoregressive(X[:2])[:, 0, 2] == -np.inf).all()
    with pytest.raises(ValueError, match="no marginals"):
        JointTransformer(3).fit([[0, -1]])
    with pytest.raises(NotFittedError):
        JointTransformer(3)._logs(torch.zeros(1, 1, dtype=torch.long))
    big = JointTransformer(3, width=4).fit(np.zeros((4, 20), int), n_steps=1)
    with pytest.raises(ValueError, match="sample instead"):
        big.joint()


def test_kneser_ney():
    stream = np.random.default_rng(0).integers(5, size=400)
    for order in (1, 2, 3, 4):
        model = KneserNey(6, order).fit(stream)
        for context in ([], [0], [1, 2], [5, 5, 5], [4, 3, 2, 1]):
            total = sum(model.probability(v, context) for v in range(6))
            assert math.isclose(total, 1, abs_tol=1e-9), (order, context)
    model = KneserNey(3, 2).fit([0, 1, 0, 1, 0, 2])
    # bigrams 01 twice, 10 twice, 02 once: D = 1 / (1 + 2 * 2); unigrams by left neighbours: 0, 1, 2 once each, D = 1
    assert math.isclose(model.probability(1, [0]), (2 - 0.2) / 3 + 0.2 * 2 / 3 / 3, abs_tol=1e-12)
    assert math.isclose(KneserNey(3, 2).fit([0, 1, 0, 1, 0, 2]).log_prob([[0, 1]])[0, 1], math.log(0.6 + 0.4 / 9))
    with pytest.raises(ValueError, match="order"):
        KneserNey(3, 0)


def test_chow_liu_tree_is_exact():
    rng = np.random.default_rng(0)
    X = np.zeros((3000, 5), int)
    X[:, 2] = rng.integers(3, size=3000)
    for child, parent in ((0, 2), (1, 2), (3, 1), (4, 0)):
        kept = rng.random(3000) < 0.7
        X[:, child] = np.where(kept, X[:, parent], rng.integers(3, size=3000))
    pc = chow_liu_tree(X, 3, smoothing=1e-9)
    # the likelihood of a tree in closed form: singles and edges
    counts = [np.bincount(X[:, t], minlength=3) / len(X) for t in range(5)]
    expected = sum(np.log(counts[t][X[:, t]]) for t in range(5))
    for a, b in ((0, 2), (1, 2), (3, 1), (4, 0)):
        joint = np.bincount(X[:, a] * 3 + X[:, b], minlength=9).reshape(3, 3) / len(X)
        expected = expected + np.log(joint[X[:, a], X[:, b]] / counts[a][X[:, a]] / counts[b][X[:, b]])
    np.testing.assert_allclose(pc.score_samples(X), expected, atol=1e-5)
    table = pc.joint()
    given = np.array([[1, -1, -1, 2, -1]])
    best = pc.most_probable(given)[0]
    assert math.isclose(table[tuple(best)], table[1, :, :, 2, :].max(), rel_tol=1e-12)
    other = chow_liu_tree(X[:200], 3)
    if other.vtree == pc.vtree:  # deterministic over the same supports: the latent KL is the KL
        assert math.isclose(pc.kl_divergence(other, "latent"), pc.kl_divergence(other), abs_tol=1e-9)
    assert len(pc._tree().variables) == len(vtree("linear", 5).variables)
    with pytest.raises(ValueError, match="smoothing"):
        chow_liu_tree(X, 3, smoothing=0)

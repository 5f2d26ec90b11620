"""GEM on whole models: the head and its scale, the trainer, and the diagnostics."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from gnomon import models
from gnomon.architectures import GEMObjective, GEMTrainer, causal_faithfulness, gem_diagnostics, gem_loss, logit_lens
from gnomon.architectures.gem import anisotropy, attach_scale, baselines, fold_scale, hull, scale_rule, uncertainty
from gnomon.architectures.gem.faithfulness import _Site, _within
from gnomon.architectures.gem.head import CONFIG, MODULE, head_of
from gnomon.architectures.gem.lens import _settled
from gnomon.architectures.gem.objective import layer_weights
from gnomon.architectures.gem.reading import Reader
from gnomon.architectures.gem.trainer import collapse

V, D, L = 61, 32, 3
IDS = torch.randint(0, V, (12, 10), generator=torch.Generator().manual_seed(0))


def llama(layers: int = L, **change) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{
        "vocab_size": V, "hidden_size": D, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.1, "tie_word_embeddings": True,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, **change})  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def small(cls, config_cls, **change):
    torch.manual_seed(0)
    return cls(config_cls(**{"vocab_size": V, "hidden_size": D, "intermediate_size": 48, "num_hidden_layers": 2,
                             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, **change})).eval()  # fmt: skip


# --- the head and the scale rule ---------------------------------------------------------------------------------------


FAMILIES = {
    "llama": lambda: llama(),
    "untied": lambda: llama(tie_word_embeddings=False),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=V, n_embd=D, n_layer=2, n_head=4, n_positions=64)
    ).eval(),
    "gemma": lambda: small(transformers.GemmaForCausalLM, transformers.GemmaConfig),
    "granite": lambda: small(transformers.GraniteForCausalLM, transformers.GraniteConfig, logits_scaling=4.0),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_attaching_and_folding_keep_the_function(family: str) -> None:
    model = FAMILIES[family]()
    before = logits(model)
    beta = scale_rule(model)
    E = model.get_output_embeddings().weight
    assert beta == pytest.approx(math.sqrt(D) / float(E.detach().norm(dim=1).mean()), rel=1e-5)
    assert torch.allclose(logits(model), before, atol=1e-4)
    head = head_of(model)
    reader = Reader(model)
    _, streams = next(reader.walk(IDS))
    h = head.states(streams[reader.depth])
    assert torch.allclose(head.beta_value * h @ E.T, before, atol=1e-4)  # logits are beta E h
    with torch.no_grad():
        getattr(model, MODULE).log_scale += 0.3
    moved = logits(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        getattr(model, MODULE).log_scale -= 1.0
    assert torch.allclose(logits(twin), moved)  # a copy holds its own scale
    assert fold_scale(twin) == pytest.approx(beta * math.exp(0.3), rel=1e-5)
    assert torch.allclose(logits(twin), moved, atol=1e-4)
    assert not hasattr(twin, MODULE)
    folded = head_of(twin)
    _, streams = next(Reader(twin).walk(IDS))
    assert torch.allclose(folded.beta_value * folded.states(streams[reader.depth]) @ twin.get_output_embeddings().weight.T,
                          moved, atol=1e-4)  # fmt: skip
    assert fold_scale(twin) == pytest.approx(beta * math.exp(0.3), rel=1e-5)  # nothing attached: a question


def test_a_checkpoint_of_a_scaled_model_is_a_plain_model(tmp_path: Path) -> None:
    model = llama()
    scale_rule(model)
    with torch.no_grad():
        getattr(model, MODULE).log_scale += 0.2
    expected = logits(model)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.allclose(logits(loaded), expected, atol=1e-4)
    again = llama()
    scale_rule(again)
    again.load_state_dict(model.state_dict())
    assert torch.allclose(logits(again), expected, atol=1e-5)
    for name, value in again.named_parameters():
        assert torch.allclose(value, dict(model.named_parameters())[name], rtol=1e-5), name


def test_the_rule_gives_states_of_the_embeddings_size() -> None:
    model = llama()
    scale_rule(model)
    _, streams = next(Reader(model).walk(IDS))
    size = float(model.lm_head.weight.detach().norm(dim=1).mean())
    assert float(streams[L].norm(dim=-1).mean()) == pytest.approx(size, rel=0.02)


def test_a_bias_or_a_soft_cap_warns_and_the_probabilities_are_the_models() -> None:
    model = llama(tie_word_embeddings=False)
    model.lm_head.bias = torch.nn.Parameter(torch.randn(V, generator=torch.Generator().manual_seed(1)))
    capped = small(transformers.Gemma2ForCausalLM, transformers.Gemma2Config, final_logit_softcapping=2.0)
    for found, says in ((model, "bias"), (capped, "soft cap")):
        with pytest.warns(UserWarning, match=says):
            head = head_of(found)
        assert not head.exact
        with pytest.warns(UserWarning, match=says):
            frame = logit_lens(found, IDS).frame
        assert abs(frame["lens_nll"].iloc[-1] - float(models.token_nll(found, IDS).mean())) < 1e-4
        with pytest.warns(UserWarning, match=says):
            objective = GEMObjective(found, 0.5)
        loss = objective(found, {"input_ids": IDS, "labels": IDS})
        out = found.model(input_ids=IDS).last_hidden_state[:, :-1]
        exact = gem_loss(head.states(out), head.E, IDS[:, 1:], 0.5, logits=logits(found)[:, :-1])
        assert torch.allclose(loss.total, exact.total, atol=1e-5)


def test_models_that_have_no_mixture() -> None:
    narrow = llama(tie_word_embeddings=False)
    narrow.lm_head = torch.nn.Linear(D // 2, V, bias=False)
    with pytest.raises(ValueError, match="'lm_head'"):
        head_of(narrow)
    with pytest.raises(ValueError, match="'lm_head'"):
        GEMObjective(narrow)
    with pytest.raises(TypeError, match="head"):
        head_of(llama().model)
    model = llama()
    scale_rule(model)
    with pytest.raises(ValueError, match="attached already"):
        attach_scale(model, 2.0)
    with pytest.raises(ValueError, match="beta"):
        attach_scale(llama(), 0.0)


# --- the objective -----------------------------------------------------------------------------------------------------


def test_the_objective_is_the_loss_of_the_final_states() -> None:
    model = llama()
    labels = IDS.clone()
    labels[0, 5:] = -100
    found = GEMObjective(model, 0.3, warmup=0.1, chunk=7)(model, {"input_ids": IDS, "labels": labels})
    h = model.model(input_ids=IDS).last_hidden_state[:, :-1]
    exact = gem_loss(h, model.lm_head.weight, labels[:, 1:], 0.3)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, exact, strict=True))
    assert torch.allclose(found.ce, model(input_ids=IDS, labels=labels).loss, atol=1e-5)
    names = [n for n, _ in model.named_parameters()]
    grads = [torch.autograd.grad(x.total, list(model.parameters()), retain_graph=True) for x in (found, exact)]
    for name, a, b in zip(names, *grads, strict=True):
        assert torch.allclose(a, b, atol=1e-5), name


def test_layers_are_averaged() -> None:
    model = llama()
    batch = {"input_ids": IDS, "labels": IDS}
    each = [GEMObjective(model, 1.0, apply_to=[x])(model, batch) for x in (1, 2, 3)]
    together = GEMObjective(model, 1.0, apply_to="all")(model, batch)
    assert torch.allclose(together.gem, sum(x.gem for x in each) / 3, atol=1e-5)
    weighted = GEMObjective(model, 1.0, apply_to={1: 1.0, 3: 3.0})(model, batch)
    assert torch.allclose(weighted.gem, (each[0].gem + 3 * each[2].gem) / 4, atol=1e-5)
    assert torch.allclose(together.residual_ratio, each[0].residual_ratio)
    with torch.no_grad():
        stream = model.model(input_ids=IDS, output_hidden_states=True).hidden_states[1]
        h = model.model.norm(stream)[:, :-1]
    assert torch.allclose(each[0].gem, gem_loss(h, model.lm_head.weight, IDS[:, 1:], 1.0).gem, atol=1e-5)


def test_the_weight_rises_linearly() -> None:
    objective = GEMObjective(llama(), 0.4, warmup=0.1)
    assert [objective.weight(p) for p in (0, 0.05, 0.1, 1)] == [0, 0.2, 0.4, 0.4]
    assert GEMObjective(llama(), 0.4, warmup=0).weight(0.0) == 0.4


@pytest.mark.parametrize(("change", "says"), [
    ({"lam": -1}, "lam"), ({"variant": "x"}, "'energy'"), ({"detach": "x"}, "'none'"), ({"apply_to": "first"}, "'all'"),
    ({"apply_to": [0]}, "1..3"), ({"apply_to": [4]}, "1..3"), ({"apply_to": {2: -1.0}}, "positive"), ({"warmup": 2}, "warmup"),
])  # fmt: skip
def test_bad_settings(change: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GEMObjective(llama(), **change)


def test_layer_weights() -> None:
    assert layer_weights("last", 3) == {3: 1.0}
    assert layer_weights("all", 4) == dict.fromkeys((1, 2, 3, 4), 0.25)


def test_the_residual_ratio_falls_with_the_scale_rule_and_hardly_without() -> None:
    data = torch.arange(64).repeat(8, 1) % 7 + torch.arange(8)[:, None]  # predictable: p can get sharp
    ratios = {}
    for name, lam, scaled in (
        ("ce", 0.0, True),
        ("gem", 1.0, True),
        ("plain ce", 0.0, False),
        ("plain gem", 1.0, False),
    ):
        model = llama(layers=2, initializer_range=0.02)
        if scaled:
            scale_rule(model)
        objective = GEMObjective(model, lam)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(30):
            optimiser.zero_grad()
            objective(model, {"input_ids": data, "labels": data}, (step + 1) / 30).total.backward()
            optimiser.step()
        fold_scale(model)
        ratios[name] = float(hull(model, data, [2])["ratio"].iloc[0])
    assert ratios["gem"] < 0.8 * ratios["ce"]
    assert ratios["plain gem"] > 0.8 * ratios["plain ce"]


# --- the trainer -------------------------------------------------------------------------------------------------------


def trained(cls, folder: Path, model=None, steps: int = 5, **change):
    model = model or llama()
    keys = set(transformers.TrainingArguments.__dataclass_fields__)
    args = transformers.TrainingArguments(
        str(folder), **{"max_steps": steps, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "seed": 3, "use_cpu": True,
                        "save_strategy": "no", "report_to": [], "logging_steps": 1, "disable_tqdm": True,
                        **{k: v for k, v in change.items() if k in keys}})  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in IDS]
    trainer = cls(model=model, args=args, train_dataset=data, **{k: v for k, v in change.items() if k not in keys})
    return model, trainer


def test_weight_zero_is_the_plain_trainer_to_the_bit(tmp_path: Path) -> None:
    plain, trainer = trained(transformers.Trainer, tmp_path)
    trainer.train()
    zero, trainer = trained(GEMTrainer, tmp_path, gem_lambda=0.0)
    trainer.train()
    for (name, a), b in zip(plain.named_parameters(), zero.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_training_lowers_the_residual_and_leaves_a_plain_model(tmp_path: Path) -> None:
    model, trainer = trained(GEMTrainer, tmp_path, steps=20, gem_lambda=1.0)
    trainer.train()
    assert not hasattr(model, MODULE)
    logs = [x for x in trainer.state.log_history if "gem" in x]
    assert {"ce", "gem", "gem_weight", "residual_ratio", "embedding_cosine", "embedding_norm"} <= set(logs[0])
    assert logs[0]["gem_weight"] == pytest.approx(0.5)
    assert logs[-1]["gem_weight"] == 1.0
    assert logs[-1]["residual_ratio"] < logs[0]["residual_ratio"]
    assert logs[0]["loss"] == pytest.approx(logs[0]["ce"] + 0.5 * logs[0]["gem"], rel=1e-3)
    trainer.save_model(str(tmp_path / "out"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.allclose(logits(loaded), logits(model.eval()), atol=1e-4)
    assert getattr(loaded.config, CONFIG) == getattr(model.config, CONFIG) > 0
    evaluated = trainer.evaluate([{"input_ids": row, "labels": row} for row in IDS])["eval_loss"]
    assert evaluated == pytest.approx(float(models.token_nll(model, IDS).mean()), abs=1e-4)


def test_a_checkpoint_resumes_and_reads_as_a_plain_model(tmp_path: Path) -> None:
    whole, trainer = trained(GEMTrainer, tmp_path / "a", steps=6, save_strategy="steps", save_steps=3)
    trainer.train()
    half = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "checkpoint-3").eval()
    assert getattr(half.config, CONFIG) != getattr(whole.config, CONFIG)  # beta as it was then
    end = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "checkpoint-6").eval()
    assert torch.allclose(logits(end), logits(whole.eval()), atol=1e-4)
    resumed, trainer = trained(GEMTrainer, tmp_path / "a", steps=6, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    assert torch.allclose(logits(resumed.eval()), logits(whole), atol=1e-3)


def test_accumulated_batches_weigh_tokens_alike(tmp_path: Path) -> None:
    """One batch of 12 rows and three of 4, with padding that differs: the loss is the mean over tokens of all."""
    logged = []
    for change in ({"per_device_train_batch_size": 12}, {"gradient_accumulation_steps": 3}):
        _, trainer = trained(GEMTrainer, tmp_path, steps=1, gem_warmup=0.0, gem_lambda=0.5, **change)
        for i, row in enumerate(trainer.train_dataset):
            row["labels"] = row["labels"].clone()
            row["labels"][10 - i % 9 :] = -100
        trainer.train()
        logged.append(trainer.state.log_history[0]["loss"])
    assert logged[0] == pytest.approx(logged[1], rel=1e-4)


def test_an_optimiser_of_ones_own_trains_the_scale_too(tmp_path: Path) -> None:
    model = llama()
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    model, trainer = trained(GEMTrainer, tmp_path, model=model, optimizers=(own, None), gem_lambda=0.5)
    before = math.sqrt(D) / float(model.lm_head.weight.detach().norm(dim=1).mean())
    trainer.train()
    assert getattr(model.config, CONFIG) != pytest.approx(before, rel=1e-6)
    assert len(own.param_groups) == 2


def test_the_trainer_refuses(tmp_path: Path) -> None:
    for change, says in [({"gem_lambda": -0.1}, "gem_lambda"), ({"gem_variant": "x"}, "variant"), ({"gem_detach": "x"}, "detach"),
                         ({"label_smoothing_factor": 0.1}, "label smoothing")]:  # fmt: skip
        with pytest.raises(ValueError, match=says):
            trained(GEMTrainer, tmp_path, **change)


def test_collapse_is_seen() -> None:
    E = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    cosines = torch.nn.functional.cosine_similarity(E[:, None], E[None], dim=-1)
    assert collapse(E)["embedding_cosine"] == pytest.approx(float(cosines.sum() - 20) / (20 * 19), abs=1e-5)
    assert collapse(E[:1].expand(9, -1))["embedding_cosine"] == pytest.approx(1, abs=1e-5)


# --- diagnostics -------------------------------------------------------------------------------------------------------


def test_uncertainty_by_hand() -> None:
    model = llama()
    found = uncertainty(model, IDS)
    p = logits(model)[:, :-1].double().softmax(-1).flatten(0, 1).numpy()
    y = IDS[:, 1:].flatten().numpy()
    own = p[np.arange(len(y)), y]
    correct, confidence = (p.argmax(1) == y).astype(float), p.max(1)
    assert found.summary["nll"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    assert found.summary["perplexity"] == pytest.approx(np.exp(-np.log(own).mean()), rel=1e-5)
    onehot = np.eye(V)[y]
    assert found.summary["brier"] == pytest.approx(((p - onehot) ** 2).sum(1).mean(), rel=1e-5)
    order = np.argsort(-confidence, kind="stable")
    risk = [1 - correct[order][: k + 1].mean() for k in range(len(y))]
    assert found.summary["aurc"] == pytest.approx(np.mean(risk), rel=1e-4)
    bins = np.array_split(np.argsort(confidence, kind="stable"), 15)
    ece = sum(len(b) * abs(confidence[b].mean() - correct[b].mean()) for b in bins) / len(y)
    assert found.summary["ece"] == pytest.approx(ece, abs=1e-3)
    assert found.reliability["count"].sum() == len(y)
    assert len(found.reliability) == 15
    entropy = -(p * np.log(p)).sum(1)
    expected = np.corrcoef(entropy, 1 - correct)[0, 1] if correct.std() else math.nan
    assert found.summary["entropy_error"] == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert uncertainty(model, IDS, temperature=2.0).summary["nll"] != found.summary["nll"]
    with pytest.raises(ValueError, match="temperature"):
        uncertainty(model, IDS, temperature=0.0)


def test_temperature_scaling_lowers_the_likelihood_loss() -> None:
    model = llama(initializer_range=0.3)  # overconfident
    best = baselines.fit_temperature(model, IDS)
    assert best > 1.5
    assert uncertainty(model, IDS, best).summary["nll"] < uncertainty(model, IDS).summary["nll"]


def test_anisotropy_of_known_clouds() -> None:
    model = llama()
    frame = anisotropy(model, IDS, pairs=4000)
    assert list(frame["layer"]) == [0, 1, 2, 3]
    with torch.no_grad():
        out = model.model(input_ids=IDS, output_hidden_states=True)
    states = out.last_hidden_state.flatten(0, 1).double()
    unit = states / states.norm(dim=1, keepdim=True)
    n = len(unit)
    exact = float((unit.sum(0).square().sum() - n) / (n * (n - 1)))
    assert frame["cosine"].iloc[-1] == pytest.approx(exact, abs=0.02)
    variance = np.linalg.eigvalsh(np.cov(states.numpy().T, bias=True))[::-1].clip(0)
    last = frame.iloc[-1]
    assert last["top1"] == pytest.approx(variance[0] / variance.sum(), rel=1e-3)
    assert last["top10"] == pytest.approx(variance[:10].sum() / variance.sum(), rel=1e-3)
    assert last["participation"] == pytest.approx(variance.sum() ** 2 / (variance**2).sum() / D, rel=1e-3)
    share = variance / variance.sum()
    assert last["effective_rank"] == pytest.approx(
        np.exp(-(share[share > 0] * np.log(share[share > 0])).sum()), rel=1e-3
    )
    assert abs(last["centred_cosine"]) < 0.1
    with pytest.raises(ValueError, match="pairs"):
        anisotropy(model, IDS, pairs=0)


def test_hull_by_layer() -> None:
    model = llama()
    scale_rule(model)
    frame = hull(model, IDS, points=6)
    E, h = model.lm_head.weight.detach(), Reader(model)
    _, streams = next(h.walk(IDS))
    x = streams[L].flatten(0, 1)
    m = torch.softmax(h.head.beta_value * x @ E.T, -1) @ E
    last = frame.iloc[-1]
    assert last["ratio"] == pytest.approx(float((x - m).square().sum() / x.square().sum()), rel=1e-4)
    assert last["cosine_hm"] == pytest.approx(float(torch.cosine_similarity(x, m, dim=-1).mean()), abs=1e-4)
    assert (frame["distance"] <= frame["residual"] + 1e-4).all()
    fewer = hull(model, IDS, [L], points=6, used=torch.arange(10)).iloc[0]
    assert fewer["distance"] >= last["distance"] - 1e-4  # a smaller hull is no nearer


def test_the_lens_at_the_last_layer_is_the_model() -> None:
    for model in (llama(), FAMILIES["gpt2"]()):
        reader = Reader(model)
        batch, streams = next(reader.walk(IDS, [0, 1]))
        assert torch.equal(reader.head.logits(reader.normed(reader.depth, streams[reader.depth])), logits(model))
        found = logit_lens(model, IDS)
        last = found.frame.iloc[-1]
        assert last["lens_kl"] == 0
        assert last["agreement"] == last["rank"] == 1
        assert last["lens_nll"] == pytest.approx(float(models.token_nll(model, IDS).mean()), abs=1e-5)
        assert torch.equal(batch, IDS)
        if reader.depth == L:
            with torch.no_grad():
                stream = model.model(input_ids=IDS, output_hidden_states=True).hidden_states[1]
                early = model.lm_head(model.model.norm(stream))[:, :-1].log_softmax(-1)
            final = logits(model)[:, :-1].log_softmax(-1)
            row = found.frame.iloc[1]
            assert row["lens_kl"] == pytest.approx(float((final.exp() * (final - early)).sum(-1).mean()), rel=1e-4)
            assert row["agreement"] == pytest.approx(float((final.argmax(-1) == early.argmax(-1)).float().mean()))


def test_when_a_token_settles() -> None:
    tops = torch.tensor([[1, 5, 7, 7], [2, 5, 1, 7], [2, 5, 7, 7], [2, 5, 7, 7]])
    assert _settled(tops, [0, 1, 2, 4]).tolist() == [1, 0, 2, 0]


def test_trajectories_are_shown_for_a_few_tokens() -> None:
    found = logit_lens(llama(), IDS, [0, 2, 3])
    assert found.trajectories.groupby("position").size().eq(3).all()
    assert found.trajectories["position"].nunique() == 16
    assert 0 <= found.settled <= 3


def test_a_tuned_lens_is_nearer_to_the_model() -> None:
    model = llama(initializer_range=0.3)
    translators = baselines.tuned_lens(model, IDS, [1, 2], steps=40, batch=64)
    untuned, tuned = (logit_lens(model, IDS, [1, 2], translators=t).frame["lens_kl"] for t in (None, translators))
    assert (tuned < untuned).all()
    fresh = {1: baselines.Translator(D)}
    assert logit_lens(model, IDS, [1], translators=fresh).frame["lens_kl"][0] == pytest.approx(untuned[0], rel=1e-4)


# --- causal faithfulness -----------------------------------------------------------------------------------------------


def test_an_orthogonal_subspace_changes_nothing() -> None:
    model = llama()
    site = _Site(Reader(model), IDS, 2)
    h = site.stream
    unit = h / h.norm(dim=1, keepdim=True)
    v = torch.randn(len(h), D, 3, generator=torch.Generator().manual_seed(0))
    v = v - unit[:, :, None] * torch.einsum("nd,ndk->nk", unit, v)[:, None]
    removed = _within(torch.linalg.qr(v).Q, h)
    assert removed.norm(dim=1).max() < 1e-5
    assert torch.allclose(site.model(h - removed), site.model(h), atol=1e-5)
    assert torch.allclose(site.model(h), logits(model)[:, -1].log_softmax(-1), atol=1e-5)


def test_a_model_that_ends_at_the_layer_is_faithful_to_its_lens() -> None:
    """Blocks that add nothing after the layer: lens and model are one, so that swaps and responses agree wholly."""
    model = llama()
    with torch.no_grad():
        for block in model.model.layers[1:]:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
    found = causal_faithfulness(model, IDS, layer=1)
    assert found.swap == pytest.approx(1)
    assert found.response == pytest.approx(1, abs=1e-4)
    assert found.ablation > 0
    assert len(found.rows) == len(IDS)
    again = causal_faithfulness(model, IDS, layer=1)
    assert found.rows.equals(again.rows)


def test_bad_layers_and_tokens() -> None:
    model, shallow = llama(), llama(layers=1)
    for call, says in [
        (lambda: logit_lens(shallow, IDS), "at least 2"),
        (lambda: causal_faithfulness(shallow, IDS), "at least 2"),
        (lambda: gem_diagnostics(shallow, IDS), "at least 2"),
        (lambda: causal_faithfulness(model, IDS, layer=3), "1..2"),
        (lambda: causal_faithfulness(model, IDS, alpha=0), "alpha"),
        (lambda: logit_lens(model, IDS, [7]), "0..3"),
        (lambda: logit_lens(model, IDS, "some"), "'all'"),
        (lambda: uncertainty(model, IDS + V), "0..60"),
        (lambda: uncertainty(model, IDS[:0]), "at least one row"),
        (lambda: uncertainty(model, IDS.float()), "integers"),
        (lambda: gem_diagnostics(model, ["text"]), "tokenizer"),
    ]:
        with pytest.raises(ValueError, match=says):
            call()


def test_the_report_has_a_row_for_each_layer() -> None:
    report = gem_diagnostics(llama(), IDS, points=2, positions=6)
    frame = report.to_frame()
    assert list(frame["layer"]) == [0, 1, 2, 3]
    assert {"lens_kl", "cosine", "ratio", "distance", "effective_rank"} <= set(frame)
    assert report.faithfulness is not None
    assert gem_diagnostics(llama(), IDS, [1, 3], points=2, positions=0).faithfulness is None

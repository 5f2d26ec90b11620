"""Surgery on tiny models of every family: placement, caches, saving and loading, bad input."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from gnomon import models
from gnomon.surgery import GhostedLayer, GhostedLayers, layer_similarity
from gnomon.surgery.ghosted_layers.calibrate import Batch, batches, collect, layer_inputs
from gnomon.surgery.ghosted_layers.model import FAMILIES, shorten
from gnomon.surgery.ghosted_layers.moments import BoundaryMoments
from gnomon.surgery.ghosted_layers.solve import Operator

V, D, L = 97, 32, 8


def tiny(family: str = "llama", layers: int = L, **given) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=V, n_embd=D, n_layer=layers, n_head=4, n_positions=64, **given)
    else:
        sizes = {"vocab_size": V, "hidden_size": D, "intermediate_size": 48, "num_hidden_layers": layers, "head_dim": 8,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
                 "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.08}  # fmt: skip
        if family == "gemma3_text":
            sizes["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
            sizes["sliding_window"] = 8
        config = transformers.AutoConfig.for_model(family, **{**sizes, **given})
    return getattr(transformers, FAMILIES[family])(config).eval()


def tokens(n: int = 24, length: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, V, (n, length), generator=torch.Generator().manual_seed(seed))


def logits(model, ids=None) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens(3) if ids is None else ids, use_cache=False).logits


def quiet(**given) -> GhostedLayers:
    return GhostedLayers(**{"n_remove": 2, **given})


# --- every family ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_generates_saves_and_loads(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    before = copy.deepcopy(model.state_dict())
    ghost = quiet(layers=[2, 5, 6], operator="affine")
    short = ghost.fit_transform(model, tokens())
    assert ghost.removed_ == [2, 5, 6]
    assert sorted(ghost.operators_) == [2, 4]
    assert list(ghost.report_["before"]) == [2, 4]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())  # untouched
    assert type(model).__name__ == FAMILIES[family]
    parts = models.structure(short)
    assert len(parts.blocks) == short.config.num_hidden_layers == L - 3
    assert short.config.model_type == f"gnomon-ghosted-{family}"
    assert [hasattr(b, "ghost") for b in parts.blocks] == [False, False, True, False, True]
    plain = set(before) & set(short.state_dict())
    assert set(short.state_dict()) - plain == {
        f"{parts.blocks_path}.{i}.ghost.{n}" for i in (2, 4) for n in ("weight", "bias")
    }
    with_cache, without = (
        short.generate(tokens(2, 5), max_new_tokens=12, do_sample=False, use_cache=c, pad_token_id=0)
        for c in (True, False)
    )
    assert torch.equal(with_cache, without)
    short.save_pretrained(tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(again) is type(short)
    assert (logits(again) - logits(short)).abs().max() < 1e-6
    assert (logits(GhostedLayers.from_pretrained(tmp_path / "out")) - logits(short)).abs().max() < 1e-6
    assert {int(k): v for k, v in again.config.ghosted_layers.items()} == {
        2: {"removed": [2], "affine": True}, 4: {"removed": [5, 6], "affine": True}}  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_nothing_removed_changes_nothing(family: str) -> None:
    model = tiny(family)
    short = quiet(n_remove=0).fit_transform(model, tokens())
    assert torch.equal(logits(short), logits(model))
    assert short is not model


def test_without_gnomon_loading_fails(tmp_path: Path) -> None:
    quiet(layers="2:4").fit_transform(tiny(), tokens()).save_pretrained(tmp_path / "ghost")
    quiet(layers="2:4", operator="none").fit_transform(tiny(), tokens()).save_pretrained(tmp_path / "plain")
    assert (
        json.loads((tmp_path / "plain" / "config.json").read_text())["model_type"] == "llama"
    )  # an ordinary checkpoint
    code = "import transformers, sys; transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])"
    bare = subprocess.run([sys.executable, "-c", code, str(tmp_path / "ghost")], capture_output=True, text=True)
    assert bare.returncode != 0
    assert "gnomon-ghosted-llama" in bare.stderr
    code = "import sys, gnomon.surgery; assert 'torch' not in sys.modules; " + code
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "ghost")]).returncode == 0


def test_a_checkpoint_without_its_operators_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    quiet(layers="2:4").fit_transform(tiny(), tokens()).save_pretrained(tmp_path)
    weights = {k: v for k, v in load_file(tmp_path / "model.safetensors").items() if "ghost" not in k}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks the weights of a ghosted layer"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_half_precision_keeps_the_operator_in_single(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path / "dense")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.bfloat16)
    short = quiet(layers="2:4").fit_transform(model, tokens())
    short.save_pretrained(tmp_path / "short")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "short", dtype=torch.bfloat16)
    for one in (short, again):
        block = models.structure(one).blocks[2]
        assert block.ghost.weight.dtype == torch.float32
        assert block.mlp.down_proj.weight.dtype == torch.bfloat16
        assert logits(one).dtype == torch.bfloat16
    assert torch.equal(logits(again), logits(short))


# --- what the operators do -------------------------------------------------------------------------------------------


def test_an_exact_map_is_recovered_in_the_model() -> None:
    """Where the removed blocks are a linear map, the ghosted model is the dense one."""

    class Linear(torch.nn.Module):
        def __init__(self, block: torch.nn.Module, matrix: torch.Tensor):
            super().__init__()
            self.self_attn, self.mlp, self.matrix = block.self_attn, block.mlp, matrix
            self.attention_type = getattr(block, "attention_type", "full_attention")

        def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
            return hidden_states @ self.matrix

    model = tiny()
    torch.manual_seed(1)
    for i in (3, 4):
        model.model.layers[i] = Linear(model.model.layers[i], torch.eye(D) + 0.3 * torch.randn(D, D) / D**0.5)
    for per in ("run", "layer"):
        short = quiet(layers=[3, 4], per=per).fit_transform(model, tokens())
        assert (logits(short) - logits(model)).abs().max() < 1e-5


def test_the_operator_stands_before_the_next_block() -> None:
    model = tiny()
    ghost = quiet(layers=[2, 5])
    short = ghost.fit_transform(model, tokens())
    assert {int(k): v["removed"] for k, v in short.config.ghosted_layers.items()} == {2: [2], 4: [5]}  # old 3 and old 6
    states, _ = layer_inputs(model, Batch(tokens(2)), {2, 3})
    inside, _ = layer_inputs(short, Batch(tokens(2)), {2})
    assert torch.equal(inside[2], states[2])  # the stream reaches the block as it was
    x = states[2].flatten(0, 1)
    direct = x.double() @ ghost.operators_[2].weight
    assert (models.structure(short).blocks[2].ghost(x) - direct).abs().max() < 1e-5


def test_first_and_last_blocks() -> None:
    model = tiny()
    first = quiet(layers=[0]).fit_transform(model, tokens())
    assert hasattr(first.model.layers[0], "ghost")
    with pytest.raises(ValueError, match="last block"):
        quiet(layers=[L - 1]).fit_transform(model, tokens())
    last = quiet(layers=[L - 2, L - 1], allow_last=True).fit_transform(model, tokens())
    assert hasattr(last.model.norm, "ghost")
    assert "model.norm.ghost.weight" in last.state_dict()
    plain = quiet(layers=[L - 2, L - 1], allow_last=True, operator="none").fit_transform(model, tokens())
    gap = [float((logits(m) - logits(model)).norm()) for m in (last, plain)]
    assert gap[0] < gap[1]


def test_per_layer_and_per_run() -> None:
    model = tiny()
    one = [quiet(layers=[3], per=per).fit_transform(model, tokens()) for per in ("run", "layer")]
    assert torch.equal(logits(one[0]), logits(one[1]))
    run, layer = (quiet(layers=[3, 4, 6], per=per, operator="affine") for per in ("run", "layer"))
    joint, composed = (g.fit_transform(model, tokens()) for g in (run, layer))
    assert list(run.report_["removed"]) == ["3:5", "6:7"]
    assert list(layer.report_["removed"]) == ["3:4", "4:5", "6:7"]
    assert (logits(joint) - logits(composed)).abs().max() > 1e-4
    stats = collect(model, batches(tokens()), [(3, 4), (4, 5)])[0]
    a, b = (layer.solve(stats[p]) for p in ((3, 4), (4, 5)))
    assert torch.allclose(layer.operators_[3].weight, a.weight @ b.weight, atol=1e-9)
    assert torch.allclose(layer.operators_[3].bias, a.bias @ b.weight + b.bias, atol=1e-9)
    x = torch.randn(5, D, dtype=torch.float64)
    assert torch.allclose(a.then(b).weight, a.weight @ b.weight)
    assert torch.allclose(
        x @ layer.operators_[3].weight + layer.operators_[3].bias, (x @ a.weight + a.bias) @ b.weight + b.bias
    )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_replaceme_is_folded(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    ghost = quiet(layers=[3, 4], operator="replaceme")
    short = ghost.fit_transform(model, tokens(), held_out=tokens(seed=1))
    assert type(short) is type(model)
    assert short.config.model_type == family
    matrix = ghost.operators_[2].weight.float()
    explicit = shorten(model, [3, 4])
    block = models.structure(explicit).blocks[2]
    models.structure(explicit).mlp(block).register_forward_hook(lambda module, args, out: out @ matrix)
    assert (logits(short) - logits(explicit)).abs().max() < 1e-4
    states, written = layer_inputs(model, Batch(tokens()), {3, 5}, {2})
    rest = states[3] - written[2]
    direct = ((written[2].double() @ ghost.operators_[2].weight + rest - states[5]) ** 2).sum() / (
        (states[5] - states[3]) ** 2
    ).sum()
    assert ghost.report_["residual"][0] == pytest.approx(float(direct), rel=1e-5)
    short.save_pretrained(tmp_path)
    assert (logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path)) - logits(short)).abs().max() < 1e-6
    cosine = quiet(layers=[3, 4], operator="replaceme-cosine", options={"epochs": 3, "lr": 1e-2})
    assert (logits(cosine.fit_transform(model, tokens())) - logits(explicit)).abs().max() > 0
    with pytest.raises(ValueError, match="layer 0"):
        quiet(layers=[0, 1], operator="replaceme").fit_transform(model, tokens())
    with pytest.raises(ValueError, match="per"):
        quiet(layers=[3], operator="replaceme", per="layer").fit_transform(model, tokens())


def test_replaceme_needs_a_plain_residual() -> None:
    with pytest.raises(TypeError, match="norm follows"):
        quiet(layers=[3], operator="replaceme").fit_transform(tiny("gemma3_text"), tokens())


@pytest.mark.parametrize("operator", ["ghost", "scalar", "shift", "diagonal", "symmetric", "orthogonal", "low-rank",
                                      "linearpatch-d", "linearpatch-r"])  # fmt: skip
def test_every_operator_class_in_a_model(operator: str) -> None:
    ghost = quiet(layers="3:5", operator=operator, options={"rank": 4} if operator == "low-rank" else None)
    short = ghost.fit_transform(tiny(), tokens(), held_out=tokens(seed=2))
    row = ghost.report_.iloc[0]
    assert torch.isfinite(logits(short)).all()
    assert 0 < row["residual"] < 10
    assert row["held_out"] > 0
    assert (row["removed"], row["tokens"], row["before"]) == ("3:5", 24 * 16, 3)


def test_the_ghost_module() -> None:
    operator = Operator(torch.randn(D, D, dtype=torch.float64), torch.randn(D, dtype=torch.float64))
    layer = GhostedLayer.of(operator)
    x = torch.randn(3, 5, D)
    assert torch.allclose(layer(x), (x.double() @ operator.weight + operator.bias).float(), atol=1e-4)
    assert layer(x.half()).dtype == torch.float16
    assert layer(x.double()).dtype == torch.float64
    assert GhostedLayer.of(Operator(operator.weight, torch.zeros(D))).bias is None
    x = torch.randn(4, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))  # what is before the cut can still be trained


# --- calibration -----------------------------------------------------------------------------------------------------


def test_one_pass_equals_the_activations() -> None:
    model, ids = tiny(), tokens()
    found, table = collect(
        model, batches(ids, batch_size=5), [(2, 4), (3, 7)], similarity=True, row_weight="sqrt", mlp=True
    )
    states, written = layer_inputs(model, Batch(ids), set(range(L + 1)), {1, 2})
    for (start, end), stats in found.items():
        direct = BoundaryMoments(D, row_weight="sqrt")
        direct.update(states[start], states[end], mlp=written[start - 1])
        for name in ("first", "rest", "weighted_first", "weighted_rest", "mlp"):
            a, b = getattr(stats, name), getattr(direct, name)
            assert torch.allclose(a.xx, b.xx, rtol=1e-4, atol=1e-4), name
            assert torch.allclose(a.xy, b.xy, rtol=1e-4, atol=1e-4), name
            assert a.n == pytest.approx(b.n, rel=1e-5)
        assert stats.first.n == len(ids)
    unit = torch.stack([torch.nn.functional.normalize(states[i].double(), dim=-1) for i in range(L + 1)])
    cosine = torch.einsum("lbtc,mbtc->lm", unit, unit) / ids.numel()
    assert torch.allclose(torch.from_numpy(table.cosine), cosine, atol=1e-6)
    last = torch.arccos(torch.einsum("lbc,mbc->blm", unit[:, :, -1], unit[:, :, -1]).clamp(-1, 1)).mean(0) / torch.pi
    assert torch.allclose(torch.from_numpy(table.angular), last.fill_diagonal_(0), atol=1e-3)
    norms = torch.stack([states[i].norm(dim=-1) for i in range(L + 1)])
    assert torch.allclose(torch.from_numpy(table.first_norm), norms[:, :, 0].mean(1).double(), rtol=1e-5)
    assert torch.allclose(
        torch.from_numpy(table.median_norm), norms[:, :, 1:].flatten(1).median(1).values.double(), rtol=1e-5
    )


def test_padding_does_not_count() -> None:
    model, ids = tiny(), tokens(6, 10)
    padded = {"input_ids": torch.cat([ids, torch.zeros(6, 4, dtype=torch.long)], 1),
              "attention_mask": torch.cat([torch.ones(6, 10), torch.zeros(6, 4)], 1).long()}  # fmt: skip
    (plain, a), (masked, b) = (collect(model, batches(d), [(2, 4)], similarity=True) for d in (ids, [padded]))
    assert masked[2, 4].n == plain[2, 4].n == 60
    assert torch.allclose(plain[2, 4].rest.xx, masked[2, 4].rest.xx, rtol=1e-4, atol=1e-3)
    assert torch.allclose(torch.from_numpy(a.cosine), torch.from_numpy(b.cosine), atol=1e-5)
    assert torch.allclose(torch.from_numpy(a.angular), torch.from_numpy(b.angular), atol=1e-3)


@pytest.mark.parametrize("criterion", ["streamline", "shortgpt", "angular"])
@pytest.mark.parametrize("per", ["run", "layer"])
def test_criteria_choose_and_fit(criterion: str, per: str) -> None:
    model = tiny()
    ghost = quiet(n_remove=3, criterion=criterion, per=per)
    short = ghost.fit_transform(model, tokens())
    table = layer_similarity(model, tokens())
    assert ghost.removed_ == table.choose(3, criterion)
    assert torch.allclose(
        logits(short), logits(quiet(layers=ghost.removed_, per=per).fit_transform(model, tokens())), atol=1e-5
    )


def test_text_and_iterables() -> None:
    class Words:
        def __call__(self, text: str, **_) -> transformers.BatchEncoding:
            return transformers.BatchEncoding({"input_ids": [3 + sum(map(ord, w)) % (V - 3) for w in text.split()]})

    texts = [" ".join(f"w{i * j % 37}" for j in range(40)) for i in range(1, 12)]
    ids = torch.tensor([Words()(t).input_ids for t in texts])
    by_text = quiet(layers="2:4").fit_transform(tiny(), texts, tokenizer=Words())
    by_ids = quiet(layers="2:4").fit_transform(tiny(), iter([ids[:4], {"input_ids": ids[4:]}]))
    assert (logits(by_text) - logits(by_ids)).abs().max() < 1e-4
    with pytest.raises(ValueError, match="tokenizer"):
        quiet().fit_transform(tiny(), texts)


def test_the_given_model_can_be_consumed() -> None:
    model = tiny()
    expected = logits(quiet(layers="2:4").fit_transform(model, tokens()))
    short = quiet(layers="2:4", copy=False).fit_transform(model, tokens())
    assert short is model
    assert torch.equal(logits(short), expected)


def test_shared_tensors_are_neither_copied_nor_changed() -> None:
    model = tiny()
    before = logits(model)
    matrix = torch.randn(D, D, dtype=torch.float64)
    short = shorten(model, [3], {4: Operator(matrix, torch.zeros(D))}, {1: matrix}, keep="share")
    assert short.model.layers[0].mlp.up_proj.weight is model.model.layers[0].mlp.up_proj.weight
    assert [b.self_attn.layer_idx for b in short.model.layers] == list(range(L - 1))
    assert [b.self_attn.layer_idx for b in model.model.layers] == list(range(L))
    assert torch.equal(logits(model), before)
    assert model.config.num_hidden_layers == L


def test_layer_types_follow() -> None:
    short = quiet(layers=[1, 2, 4]).fit_transform(tiny("gemma3_text"), tokens())
    assert short.config.layer_types == ["sliding_attention", "full_attention"] + [
        "full_attention",
        "sliding_attention",
        "full_attention",
    ]
    assert [b.self_attn.is_sliding for b in short.model.layers] == [
        t == "sliding_attention" for t in short.config.layer_types
    ]


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_settings() -> None:
    model = tiny()
    for options, match in [
        ({"n_remove": -1}, "L = 8"),
        ({"n_remove": L - 1}, "L = 8"),
        ({"layers": [2, 2]}, "2 given more than once"),
        ({"layers": [3, 99]}, "99 out of range"),
        ({"layers": "7:40"}, "39 out of range"),
        ({"operator": "magic"}, "operator"),
        ({"per": "block"}, "per"),
        ({"criterion": "odd"}, "criterion"),
        ({"solver": "odd"}, "solver"),
        ({"ridge": -1}, "ridge"),
        ({"ridge_mode": "odd"}, "ridge_mode"),
        ({"stats_dtype": "float16"}, "stats_dtype"),
        ({"row_weight": "odd"}, "row_weight"),
        ({"batch_size": 0}, "batch_size"),
    ]:
        with pytest.raises(ValueError, match=match):
            quiet(**options).fit_transform(model, tokens())
    for data, match in [
        ([], "no tokens"),
        (torch.zeros(0, 4, dtype=torch.long), "no tokens"),
        (torch.zeros(2, 3), "token ids"),
        (tokens()[0], "token ids"),
        (torch.full((2, 4), V), "token ids 97"),
    ]:
        with pytest.raises(ValueError, match=match):
            quiet().fit_transform(model, data)
    with pytest.raises(TypeError, match="calibration"):
        quiet().fit_transform(model, [3.5])
    with pytest.raises(TypeError, match="n_remove"):
        quiet(n_remove=2.5).fit_transform(model, tokens())


def test_few_tokens_warn() -> None:
    with pytest.warns(UserWarning, match="N < C"):
        quiet(layers="2:4").fit_transform(tiny(), tokens(1))
    with pytest.warns(UserWarning, match="relative"):
        quiet(layers="2:4").fit_transform(tiny(), tokens(4))


def test_activations_that_are_not_finite() -> None:
    model = tiny()
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"layer 3 .* batch 0"):
        quiet(layers="3:5").fit_transform(model, tokens())


def test_other_architectures() -> None:
    encoder = transformers.BertModel(transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                             intermediate_size=32, vocab_size=V))  # fmt: skip
    with pytest.raises(TypeError, match="Llama"):
        quiet().fit_transform(encoder, tokens())
    config = transformers.PhiConfig(
        vocab_size=V, hidden_size=D, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4
    )
    with pytest.raises(TypeError, match="llama"):
        quiet(layers=[1]).fit_transform(transformers.PhiForCausalLM(config), tokens())
    short = quiet(layers="2:4").fit_transform(tiny(), tokens())
    with pytest.raises(ValueError, match="already ghosted"):
        quiet(layers=[1]).fit_transform(short, tokens())
    scaled = tiny("gpt2", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ValueError, match="index"):
        quiet(layers=[1]).fit_transform(scaled, tokens())

"""The block: parameters, decoding, padding, and the conversion of a transformers Mamba-2."""

import copy

import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM
from transformers.models.mamba2 import modeling_mamba2

from gnomon.architectures import SemiseparableMixer, segsum, use_semiseparable


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    config = Mamba2Config(
        num_heads=4, head_dim=8, hidden_size=16, vocab_size=61, state_size=8, num_hidden_layers=2, n_groups=2,
        chunk_size=16, expand=2, initializer_range=0.3,
    )  # fmt: skip
    before = Mamba2ForCausalLM(config).eval()
    library = modeling_mamba2.mamba2_chunk_scan
    after = copy.deepcopy(before)
    assert use_semiseparable(after) is after
    assert modeling_mamba2.mamba2_chunk_scan is library
    assert any(isinstance(m, SemiseparableMixer) for m in after.modules())
    return before, after


@pytest.fixture
def tokens():
    ids = torch.randint(3, 61, (2, 41), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    return ids, mask


@torch.no_grad()
def test_logits_and_generation_with_left_padding(models, tokens):
    before, after = models
    ids, mask = tokens
    old, new = (m(ids, attention_mask=mask).logits[mask.bool()] for m in models)
    torch.testing.assert_close(new, old, rtol=1e-5, atol=1e-5)
    options = {"attention_mask": mask, "max_new_tokens": 32, "do_sample": False}
    assert torch.equal(after.generate(ids, **options), before.generate(ids, **options))


@torch.no_grad()
def test_cache_continues_a_prompt(models, tokens):
    _, after = models
    ids = tokens[0]
    whole = after(ids).logits
    cache = after(ids[:, :20], use_cache=True).cache
    rest = [after(ids[:, 20:30], cache=cache, use_cache=True).logits]
    rest += [after(ids[:, t : t + 1], cache=cache, use_cache=True).logits for t in range(30, 41)]
    torch.testing.assert_close(torch.cat(rest, 1), whole[:, 20:], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_bounded_step_holds_in_decoding_too(tokens):
    torch.manual_seed(0)
    mixer = SemiseparableMixer(16, d_state=8, headdim=8, chunk_size=8, dt_limit=(0.05, 0.06)).eval()
    from transformers import DynamicCache

    config = Mamba2Config(num_heads=4, head_dim=8, hidden_size=16, num_hidden_layers=1, n_groups=1)
    x = torch.randn(1, 12, 16)
    cache = DynamicCache(config=config)
    steps = torch.cat([mixer(x[:, :5], cache), *(mixer(x[:, t : t + 1], cache) for t in range(5, 12))], 1)
    torch.testing.assert_close(steps, mixer(x), rtol=1e-5, atol=1e-6)


def test_same_state_dict_and_gradients(models, tokens, tmp_path):
    before, after = models
    assert list(after.state_dict()) == list(before.state_dict())
    for model in models:
        model.zero_grad()
        model(tokens[0], labels=tokens[0]).loss.backward()
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad, rtol=1e-3, atol=1e-4 * float(old.grad.abs().max()))
    after.save_pretrained(tmp_path)
    again = Mamba2ForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(again(tokens[0]).logits, after(tokens[0]).logits, rtol=1e-5, atol=1e-5)


def test_initial_decays():
    torch.manual_seed(0)
    mixer = SemiseparableMixer(256, d_state=16, headdim=8)
    rate, step = mixer.A_log.exp(), torch.nn.functional.softplus(mixer.dt_bias)
    assert 1 <= rate.min() < 3 < 12 < rate.max() <= 16
    assert 1e-3 * (1 - 1e-5) <= step.min() < 3e-3 < 3e-2 < step.max() <= 0.1 * (1 + 1e-5)
    assert (mixer.D == 1).all()
    a = mixer.log_decays(torch.randn(1, 20, 256))
    assert a.shape == (1, 20, 64)
    assert (segsum(a.transpose(1, 2)) <= 1).all()


def test_what_cannot_be_built_or_converted():
    with pytest.raises(ValueError, match="headdim 7 must divide"):
        SemiseparableMixer(16, headdim=7)
    with pytest.raises(ValueError, match="ngroups 3 must divide the 4 heads"):
        SemiseparableMixer(16, headdim=8, ngroups=3)
    with pytest.raises(TypeError, match="must hold Mamba2Mixer layers"):
        use_semiseparable(torch.nn.Linear(2, 2))
    odd = Mamba2Config(num_heads=2, head_dim=8, hidden_size=8, vocab_size=9, state_size=4, num_hidden_layers=1,
                       n_groups=1, hidden_act="gelu")  # fmt: skip
    with pytest.raises(ValueError, match="must be silu, got 'gelu'"):
        use_semiseparable(Mamba2ForCausalLM(odd))

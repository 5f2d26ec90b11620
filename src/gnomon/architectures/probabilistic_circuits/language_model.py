"""Next-token predictors of two parts, a context encoder and an output head: circuits, Transformers and what lies between."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from gnomon.architectures.probabilistic_circuits.baselines import LSTMContext, TransformerContext, warm_cosine

ENCODERS = ("hmm", "transformer", "lstm")
HEADS = ("prob", "prob_untied", "logit", "logit_log")


class HMMContext(nn.Module):
    """The forward filter: pi_t in the simplex, the weights of the R states of position t given the tokens before it."""

    def __init__(self, n_tokens: int, width: int):
        super().__init__()
        self.initial = nn.Parameter(torch.randn(width))
        self.transition = nn.Parameter(torch.randn(width, width))
        self.emission = nn.Parameter(torch.randn(width, n_tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        A = self.transition.softmax(-1)
        E = self.emission.softmax(-1)
        told = nn.functional.embedding(tokens.clamp_min(0), E.T)  # [n, L, R]
        told = torch.where((tokens < 0)[..., None], torch.ones_like(told), told)
        pi = self.initial.softmax(-1).expand(len(tokens), -1)
        out = []
        for e in told.unbind(1):
            out.append(pi)
            seen = pi * e
            pi = (seen / seen.sum(-1, keepdim=True).clamp_min(1e-30)) @ A
        return torch.stack(out, 1)


class PCLanguageModel(nn.Module):
    r"""p(x_t | x_<t) = Out(Enc(x_<t)) over a vocabulary.

    Parameters
    ----------
    vocab_size : int
        V.
    width : int
        R: the states of the HMM, and the experts of a probability head.
    encoder : {"hmm", "transformer", "lstm"}
        ``hmm`` gives :math:`\pi_t` in the simplex of R by the forward filter. The others are controls; no circuit.
    head : {"prob", "prob_untied", "logit", "logit_log"}
        ``prob``: :math:`B^T \pi`, a mixture of R categorical experts, which after ``hmm`` are its emissions: a circuit
        with every marginal exact (:attr:`is_circuit`). ``prob_untied``: a second B, as many parameters as ``logit``.
        ``logit``: :math:`\mathrm{softmax}(W^T \pi + \beta)`, and ``logit_log`` the same of :math:`\log(\pi + 10^{-8})`.
        After ``transformer`` and ``lstm`` ``prob`` mixes R experts by a softmax of the context, ``logit`` is the usual
        head; the other two are for ``hmm`` only.
    d_model : int, optional
        Width of a Transformer or LSTM; default: such that the model has about the parameters of ``hmm`` with ``logit``.
    context : int
        Most tokens in a window.
    random_state : int, optional
        Of the initial weights.

    Notes
    -----
    Windows are independent: each begins with no past.
    """

    def __init__(
        self, vocab_size: int, width: int = 64, encoder: str = "hmm", head: str = "prob", *,
        d_model: int | None = None, context: int = 128, random_state: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in (("vocab_size", vocab_size), ("width", width), ("context", context)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}: got {value!r}; expected an integer of at least 1")
        if encoder not in ENCODERS:
            raise ValueError(f"encoder {encoder!r}: expected one of {', '.join(ENCODERS)}")
        if head not in HEADS or (encoder != "hmm" and head not in ("prob", "logit")):
            allowed = HEADS if encoder == "hmm" else ("prob", "logit")
            raise ValueError(f"head {head!r}: expected one of {', '.join(allowed)} with the encoder {encoder!r}")
        self.vocab_size, self.width, self.encoder_name, self.head_name = int(vocab_size), int(width), encoder, head
        self.context = int(context)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0 if random_state is None else random_state)
            self._build(d_model)

    def _build(self, d_model: int | None) -> None:
        V, R = self.vocab_size, self.width
        self.encoder: nn.Module
        if self.encoder_name == "hmm":
            self.encoder = HMMContext(V, R)
            size = R
        else:
            size = d_model or matched_width(V, R, self.encoder_name, self.head_name, self.context)
            self.encoder = TransformerContext(V, size, self.context) if self.encoder_name == "transformer" else (
                LSTMContext(V, size))  # fmt: skip
        self.gate = nn.Linear(size, R) if self.encoder_name != "hmm" and self.head_name == "prob" else None
        self.experts, self.weight, self.bias = None, None, None
        if self.head_name == "prob_untied" or self.gate is not None:
            self.experts = nn.Parameter(torch.randn(R, V))
        elif self.head_name.startswith("logit"):
            self.weight = nn.Parameter(torch.randn(size, V) / math.sqrt(size))
            self.bias = nn.Parameter(torch.zeros(V))

    @property
    def is_circuit(self) -> bool:
        """Whether this is one normalised circuit, all of whose marginals are exact: ``hmm`` with ``prob``."""
        return self.encoder_name == "hmm" and self.head_name == "prob"

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        """log p(x_t = v | x_<t) [n, L, V] of windows [n, L]; -1 in the past conditions nothing (``hmm`` only)."""
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= self.context:
            raise ValueError(f"tokens: got shape {tuple(tokens.shape)}; expected [n, L] with L in [1, {self.context}]")
        if (tokens < -1).any() or (tokens >= self.vocab_size).any():
            raise ValueError(f"tokens: expected symbols in [0, {self.vocab_size}), or -1 where missing")
        if self.encoder_name != "hmm" and (tokens < 0).any():
            raise NotImplementedError(f"the encoder {self.encoder_name!r} cannot leave a missing token out")
        c = self.encoder(tokens)
        if self.head_name.startswith("prob"):
            rows: Any = self.encoder.emission if self.experts is None else self.experts
            pi = c if self.gate is None else self.gate(c).softmax(-1)
            return (pi @ rows.softmax(-1)).clamp_min(1e-30).log()  # type: ignore[no-any-return]
        features = (c + 1e-8).log() if self.head_name == "logit_log" else c
        return (features @ self.weight + self.bias).log_softmax(-1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def log_prob(self, tokens: ArrayLike) -> np.ndarray:
        """log p of each token [n, L] given those before it in its window; a missing one (-1) counts 0.

        Raises
        ------
        NotImplementedError
            For missing tokens unless the model is a circuit: summing over them needs conditionals that a logit head, or
            an untied one, does not define.
        """
        windows = torch.as_tensor(np.asarray(tokens), dtype=torch.long)
        if (windows < 0).any() and not self.is_circuit:
            raise NotImplementedError(
                f"a marginal query (-1) needs a circuit (encoder 'hmm', head 'prob'): the head {self.head_name!r} "
                "defines left-to-right conditionals only, so that sums over missing tokens are not tractable"
            )
        parts = [self._told(part) for part in windows.split(64)]
        return torch.cat(parts).double().numpy()

    def _told(self, windows: Tensor) -> Tensor:
        logs = self(windows).gather(-1, windows.clamp_min(0)[..., None])[..., 0]
        return torch.where(windows < 0, 0.0, logs)

    def marginal(self, tokens: ArrayLike) -> np.ndarray:
        """log p [n] of windows with any tokens missing (-1); for circuits only (see :meth:`log_prob`)."""
        array = np.asarray(tokens)
        if not self.is_circuit:
            self.log_prob(np.where(array < 0, array, -1))  # raises, with the reason
        return self.log_prob(array).sum(-1)  # type: ignore[no-any-return]

    # --- learning ---

    def fit(
        self, tokens: ArrayLike | Iterable[str], *, tokenizer: Any = None, n_steps: int = 400, batch_size: int = 16,
        length: int = 64, step: float | None = None, random_state: int | None = None,
    ) -> Self:  # fmt: skip
        """Adam on random windows of a stream, by cross-entropy.

        Parameters
        ----------
        tokens : array of int [n], array of int [windows, L], or texts
            A stream, windows of one's own, or texts for ``tokenizer`` (any with the call of ``transformers``).
        n_steps, batch_size, length : int
            Steps, windows a step, and tokens a window of a stream.
        step : float, optional
            Learning rate, with a short warm-up and a half cosine. Default .05 for ``hmm``, .01 for the others.
        """
        data = self._stream(tokens, tokenizer)
        generator = torch.Generator().manual_seed(0 if random_state is None else random_state)
        length = min(length, self.context, data.shape[-1])
        self._centre(data)
        rate = step if step is not None else 0.05 if self.encoder_name == "hmm" else 0.01
        adam = torch.optim.Adam(self.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda s: warm_cosine(s, n_steps))
        self.loss_curve_ = []
        for _ in range(n_steps):
            if data.ndim == 2:
                batch = data[torch.randint(len(data), (batch_size,), generator=generator)][:, : self.context]
            else:
                start = torch.randint(len(data) - length + 1, (batch_size, 1), generator=generator)
                batch = data[start + torch.arange(length)]
            loss = -self(batch).gather(-1, batch[..., None]).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            self.loss_curve_.append(-float(loss.detach()))
        return self

    def _stream(self, tokens: Any, tokenizer: Any) -> Tensor:
        if tokenizer is not None:
            texts = [tokens] if isinstance(tokens, str) else list(tokens)
            tokens = [i for text in texts for i in tokenizer(text)["input_ids"]]
        array = np.asarray(tokens)
        if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or array.size < 2:
            raise ValueError(f"tokens: got {array.dtype} of shape {array.shape}; expected integers [n] or [windows, L], "
                             "or texts with a tokenizer")  # fmt: skip
        if array.min() < 0 or array.max() >= self.vocab_size:
            raise ValueError(
                f"tokens: got symbols from {array.min()} to {array.max()}; expected [0, {self.vocab_size})"
            )
        return torch.from_numpy(array.astype(np.int64))

    @torch.no_grad()
    def _centre(self, data: Tensor) -> None:
        """Add the log-frequencies of the tokens to every row that predicts them: what a head need not learn by steps."""
        counts = torch.bincount(data.flatten(), minlength=self.vocab_size).float() + 0.5
        log = (counts / counts.sum()).log()
        if self.encoder_name == "hmm":
            self.encoder.emission.add_(log)  # type: ignore[operator]
        for rows in (self.experts, self.bias):
            if rows is not None:
                rows.add_(log)

    def distil_from(self, hf_model: Any, *, n_windows: int = 1024, length: int = 64, random_state: int | None = None,
                    **fit: Any) -> Self:  # fmt: skip
        """Fit to samples from a ``transformers`` causal language model of the same vocabulary.

        Parameters
        ----------
        hf_model : transformers.PreTrainedModel
        n_windows, length : int
            Sequences drawn, at temperature 1, and their tokens.
        **fit
            For :meth:`fit`.
        """
        size = hf_model.config.vocab_size
        if size != self.vocab_size:
            raise ValueError(f"hf_model: its vocabulary has {size} tokens; this model {self.vocab_size}")
        start = hf_model.config.bos_token_id
        start = 0 if start is None else int(start)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0 if random_state is None else random_state)
            drawn = []
            for n in [min(64, n_windows - i) for i in range(0, n_windows, 64)]:
                prompt = torch.full((n, 1), start, dtype=torch.long)
                out = hf_model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                                        top_p=1.0, temperature=1.0, min_new_tokens=length, max_new_tokens=length,
                                        pad_token_id=start)  # fmt: skip
                drawn.append(out[:, 1:])
        return self.fit(torch.cat(drawn).numpy(), random_state=random_state, **fit)

    @torch.no_grad()
    def generate(self, n: int, length: int, *, random_state: int | None = None) -> np.ndarray:
        """Independent sequences [n, length]."""
        generator = torch.Generator().manual_seed(0 if random_state is None else random_state)
        out = torch.zeros(n, length, dtype=torch.long)
        for t in range(length):
            p = self(out[:, : t + 1])[:, -1].exp()
            out[:, t] = torch.multinomial(p, 1, generator=generator)[:, 0]
        return out.numpy()


def matched_width(vocab_size: int, width: int, encoder: str, head: str, context: int) -> int:
    """The d whose Transformer (a multiple of 4) or LSTM has about R^2 + 2 R V parameters, those of ``hmm`` + ``logit``.

    Beside its blocks and embeddings a ``logit`` head costs d V, a ``prob`` head a gate of d R and experts of R V.
    """
    target = width**2 + 2 * width * vocab_size - (width * vocab_size if head == "prob" else 0)
    square = 24 if encoder == "transformer" else 8
    linear = vocab_size + (width if head == "prob" else vocab_size) + (context if encoder == "transformer" else 0)
    d = (math.sqrt(linear**2 + 4 * square * target) - linear) / (2 * square)
    return max(4, 4 * round(d / 4)) if encoder == "transformer" else max(1, round(d))

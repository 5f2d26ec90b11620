"""Is a response right: whole strings, normalised, against every accepted answer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

Answers = str | Sequence[str]


def normalised(text: str) -> str:
    """Lower case without accents, punctuation and a leading "the"; "&" reads "and"."""
    plain = unicodedata.normalize("NFKD", text.replace("&", " and "))
    plain = "".join(c for c in plain if not unicodedata.combining(c)).casefold()
    plain = re.sub(r"['’ʼ`.]", "", plain)  # St. John's, N'Djamena, D.C.
    return re.sub(r"^the ", "", re.sub(r"\W+", " ", plain).strip())


def aliases(answer: Answers) -> list[str]:
    """All accepted answers of one question."""
    return [answer] if isinstance(answer, str) else list(answer)


def alias_match(question: str, response: str, answer: Answers) -> bool:
    """Whether the whole response equals one of the answers: "Guinea-Bissau" does not answer "Guinea".

    An empty list of answers is a question without one: no response is right.
    """
    said = normalised(response)
    return bool(said) and said in {normalised(a) for a in aliases(answer)}

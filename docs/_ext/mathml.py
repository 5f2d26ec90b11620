"""Formulas as MathML, made while the site is built: browsers show it by themselves, so that no script is fetched."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True}


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    rows = [row for row in node.astext().split("\n\n") if row.strip()]
    self.body.append("".join(f'<div class="math">{_mathml(node, as_block=True, text=row)}</div>\n' for row in rows))
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, as_block: bool, text: str | None = None) -> str:
    source = re.sub(r"\\[bB]igg?[lrm]?(?![a-zA-Z])", "", node.astext() if text is None else text)  # sizes of brackets
    if "&" in source or r"\\" in source:
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    try:
        return str(latex2mathml.tex2mathml(source.strip(), as_block=as_block))
    except MathError as error:
        log.warning("a formula cannot be shown: %s: %s", source.strip(), error, location=node)
        return f"<code>{html.escape(source)}</code>"

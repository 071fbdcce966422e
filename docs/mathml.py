"""Equations of the pages as MathML, which browsers show by themselves: nothing is fetched."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def on_page_content(text: str, **page: Any) -> str:
    """Called by mkdocs for each page; pymdownx.arithmatex has marked what is an equation."""
    del page

    def equation(found: re.Match[str]) -> str:
        display = "inline" if found[2] == "(" else "block"
        return convert(html.unescape(found[3]).strip(), display=display)

    return MARKED.sub(equation, text)

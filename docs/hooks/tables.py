"""MkDocs hook for code in tables: each of its words stays in one piece, as site.css says of `td code span`.

A browser breaks code at hyphens, and mkdocs-material, in a narrow column, anywhere.
"""

import re
from typing import Any

CELL = re.compile(r"<t[hd]\b.*?</t[hd]>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
WORD = re.compile(r"\S+")


def on_page_content(html: str, **_: Any) -> str:
    """Puts each word of the code in a page's tables into a span."""
    return CELL.sub(lambda cell: CODE.sub(lambda code: WORD.sub(r"<span>\g<0></span>", code[0]), cell[0]), html)

"""The site: its search leads from the words that a reader types to the pages that answer them, and nothing is cut."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import look
from tests.support.commands import ROOT

# As in mkdocs-material's search, a word in a title counts far more than one in the text.
TITLE = 1000
FIRST = 5


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    missing = [name for name in ("mkdocs", "material", "mkdocstrings_handlers") if find_spec(name) is None]
    if missing:
        pytest.skip(f"the site cannot be built without {', '.join(missing)}: make docs installs them")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    return site


@pytest.fixture(scope="module")
def sections(site: Path) -> list[dict[str, Any]]:
    """The sections of the search index that the build of the site writes."""
    return json.loads((site / "search/search_index.json").read_text())["docs"]


@pytest.mark.parametrize("width", [500, 1300])
def test_no_page_is_too_wide_and_no_code_breaks_within_its_words_or_is_cut(site: Path, width: int) -> None:
    for name in ("", "api/", "config/", "data/", "formats/", "keys/", "one-more/", "sources/", "training/"):
        assert look(site / f"{name}index.html", width).problems == [], name


def words(text: str) -> Counter[str]:
    """The stems of a text, roughly: words in lower case without a plural's s, without tags."""
    return Counter(word.removesuffix("s") for word in re.findall(r"[a-z0-9_]+", re.sub(r"<[^>]+>", " ", text).lower()))


def search(sections: list[dict[str, Any]], query: str) -> list[str]:
    """The pages of the best sections, by BM25 over titles and texts, the best first."""
    texts = [words(section["text"]) for section in sections]
    titles = [words(section["title"]) for section in sections]
    mean = sum(map(Counter.total, texts)) / len(texts)
    score: dict[int, float] = {}
    for word in words(query):
        having = [at for at in range(len(sections)) if texts[at][word] or titles[at][word]]
        rarity = math.log(1 + len(sections) / (1 + len(having)))
        for at in having:
            often = texts[at][word] / (texts[at][word] + 0.3 + 0.9 * texts[at].total() / mean)
            score[at] = score.get(at, 0) + rarity * (often + TITLE * titles[at][word] / (1 + titles[at].total()))
    best = sorted(score, key=score.__getitem__, reverse=True)
    return list(dict.fromkeys(sections[at]["location"].partition("#")[0] for at in best))[:FIRST]


@pytest.mark.parametrize(
    ("query", "page"),
    [("resume", "resuming/"), ("shard", "packed/"), ("mixup", "augmentation/"), ("several ranks", "training/")],
)
def test_a_word_leads_to_its_page(sections: list[dict[str, Any]], query: str, page: str) -> None:
    assert page in search(sections, query)

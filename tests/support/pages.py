"""The pages of reports: what every one has to be, and its parts."""

import re
from pathlib import Path

import lxml.html

MOST_BYTES = 3_000_000


def read_page(path: Path) -> lxml.html.HtmlElement:
    """Returns a page, after a look at what every page has to be."""
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    page = lxml.html.document_fromstring(text)
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(ids) == len(set(ids)), "an identifier comes twice"
    # It loads nothing, runs nothing, and leads nowhere but to its own places.
    assert not page.xpath("//script | //link[@rel='stylesheet'] | //iframe | //object")
    for element in page.iter(lxml.html.etree.Element):
        for name in ("href", "src", "{http://www.w3.org/1999/xlink}href"):
            value = element.get(name)
            assert value is None or value.startswith("data:") or value[1:] in ids, (element.tag, name, value[:60])
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    for svg in page.iter("svg"):
        (caption,) = page.xpath(f"//*[@id='{svg.get('aria-labelledby')}']")
        assert svg.get("role") == "img" and len(caption.text_content()) > 20
    for picture in page.iter("img"):
        assert picture.get("alt")
    assert page.get("lang") == "en" and len(page.xpath("//h1")) == len(page.xpath("//main")) == 1
    return page


def findings_of(page: lxml.html.HtmlElement) -> list[str]:
    return [element.text_content() for element in page.xpath("//ul[@class='findings']/li")]


def titles_of(page: lxml.html.HtmlElement) -> list[str]:
    return [title.text_content() for title in page.xpath("//figure//svg//title")]

"""Headless Chromium, if it is installed: what a page looks like to a reader."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Describes the page in an element of its own, which --dump-dom prints.
LOOK = """<script>addEventListener("load", () => {
const problems = [], figures = [...document.querySelectorAll("figure svg")];
const back = getComputedStyle(document.body).backgroundColor;
for (const svg of figures) {
  const name = svg.closest("figure").id, box = svg.getBoundingClientRect();
  if (box.width < 200 || box.height < 50) problems.push(`${name}: ${box.width} x ${box.height} pixels`);
  const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
  const boxes = texts.map(text => text.getBoundingClientRect());
  if (!texts.length) problems.push(`${name}: no text`);
  texts.forEach((text, i) => {
    const a = boxes[i];
    if (getComputedStyle(text).fill == back) problems.push(`${name}: "${text.textContent}" has the colour of the page`);
    if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 || a.bottom > box.bottom + 1)
      problems.push(`${name}: "${text.textContent}" is cut off`);
    if (a.height < 6) problems.push(`${name}: "${text.textContent}" is ${a.height} pixels high`);
    for (let j = i + 1; j < texts.length; j++) {
      const b = boxes[j];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
          && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
        problems.push(`${name}: "${text.textContent}" lies on "${texts[j].textContent}"`);
    }
  });
}
for (const code of document.querySelectorAll("td code, th code")) {
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let text; text = texts.nextNode();)
    for (const word of text.data.matchAll(/\\S+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(line => Math.round(line.top))).size > 1)
        problems.push(`"${word[0]}" breaks`);
    }
}
if (innerWidth >= 1300)
  for (const code of document.querySelectorAll("pre > code"))
    if (code.scrollWidth > code.clientWidth + 1) problems.push(`"${code.textContent.slice(0, 40)}..." is cut off`);
if (document.documentElement.scrollWidth > innerWidth + 1)
  problems.push(`the page is ${document.documentElement.scrollWidth} pixels wide in ${innerWidth}`);
const seen = {problems, figures: figures.length, back, dark: matchMedia("(prefers-color-scheme: dark)").matches};
const out = document.createElement("pre");
out.id = "looked";
out.textContent = JSON.stringify(seen);
document.body.append(out);
});</script>"""


class Looked(NamedTuple):
    problems: list[str]  # texts that overlap, are cut off, too small or invisible; figures without a size
    figures: int
    back: str  # colour of the background
    dark: bool
    console: list[str]  # messages of the console


def look(page: Path, width: int = 1280, dark: bool = False) -> Looked:
    """Opens a copy of a page in headless Chromium; skips the test, with the reason, if there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on PATH (apt-get install chromium)")
    copy = page.with_suffix(".look.html")
    copy.write_text(page.read_text().replace("</head>", f"{LOOK}</head>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    flags += [f"--user-data-dir={page.parent / 'chromium'}", f"--window-size={width},900", "--dump-dom"]
    flags += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = subprocess.run([program, *flags, copy.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="looked">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    console = re.findall(r'CONSOLE[^"]*"(.*)", source', done.stderr)
    return Looked(**json.loads(unescape(found[1])), console=console)

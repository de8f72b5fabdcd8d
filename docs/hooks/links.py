"""MkDocs hook for documents outside docs/: adds them to the site, and redirects links between them and docs/.

In the repository, docs/tuning.md links to ../profiles/README.md. On the site, that page is profiles/README.md, next to
tuning.md. Files that a page links to, e.g. jobs/slurm.sh, are copied to the site. A link to a folder becomes text.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
OUTSIDE = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "jobs/README.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "profiles").glob("*.md")),
)
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents outside docs/, and every file outside docs/ that a page links to."""
    for path in OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for file in list(files.documentation_pages()):
        for target in _targets(file.content_string, _in_repository(file.src_uri)):
            if files.get_file_from_path(_on_site(target)) is None and (ROOT / target).is_file():
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Redirects a page's links, which are paths in the repository, to the site's pages and files."""
    source = page.file.src_uri

    def redirect(link: re.Match[str]) -> str:
        image, text, address = link.groups()
        target, hash_sign, anchor = address.partition("#")
        path = _resolve(target, _in_repository(source))
        if path is None:
            return link[0]
        if (ROOT / path).is_dir():
            return text
        relative = posixpath.relpath(_on_site(path), posixpath.dirname(source) or ".")
        return f"{image}[{text}]({relative}{hash_sign}{anchor})"

    return _outside_fences(markdown, lambda prose: LINK.sub(redirect, prose))


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    return "".join(part if part.lstrip().startswith("```") else change(part) for part in FENCE.split(markdown))


def _targets(markdown: str, source: str) -> set[str]:
    """Returns the paths in the repository that a document at `source` links to."""
    resolved = (_resolve(address.partition("#")[0], source) for _, _, address in LINK.findall(FENCE.sub("", markdown)))
    return {path for path in resolved if path is not None}


def _resolve(target: str, source: str) -> str | None:
    """Returns the path in the repository of a relative link in `source`; None for a URL or a mere anchor."""
    if not target or "://" in target:
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _in_repository(on_site: str) -> str:
    """Returns the path in the repository of a file of the site."""
    return DOCS + on_site if (ROOT / DOCS / on_site).exists() else on_site


def _on_site(path: str) -> str:
    """Returns the path on the site of a file of the repository."""
    return path.removeprefix(DOCS)

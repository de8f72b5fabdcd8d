"""One HTML page for the result of a tool, which needs no network and no script."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tfpipe import __version__
from tfpipe.errors import ConfigError
from tfpipe.tools.output import open_figure
from tfpipe.tools.page.figures import OPTION, Figure
from tfpipe.util.atomic_write import atomic_write, writing

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "page.html"


class Finding(NamedTuple):
    """A line of the page's beginning: what was slow or broken, and where the page says more."""

    kind: str
    text: str
    anchor: str


class TableSection(NamedTuple):
    """A section with a table; numbers are aligned at the right."""

    name: str  # identifier on the page
    title: str
    text: str
    heading: Sequence[str]
    rows: Sequence[Sequence[object]]


class Page(NamedTuple):
    """Everything that a page shows, from top to bottom."""

    command: str  # of tfpipe
    name: str
    place: str  # the run's folder, or the config
    headline: str
    points: Sequence[tuple[str, str]] = ()  # what supports the headline, each with its first word
    findings: Sequence[Finding] = ()
    facts: Mapping[str, str] = {}
    figures: Sequence[Figure] = ()
    tables: Sequence[TableSection] = ()
    printed: str = ""  # what the terminal shows
    config: str = ""
    versions: Mapping[str, str] = {}
    run: Any = None  # the parts that only a run has


def load_template() -> "Template":
    """Returns the template of all pages. Raises ConfigError if Jinja2 or matplotlib is not installed."""
    try:
        import jinja2
    except ImportError as error:
        raise ConfigError(f"{OPTION} needs Jinja2 ({error}): pip install 'tfpipe[profile]'") from error
    open_figure(1, 1, OPTION)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string((files("tfpipe.tools.page") / TEMPLATE).read_text(encoding="utf-8"))


class Given(NamedTuple):
    """The config that a command was given."""

    command: str
    path: Path
    overrides: Sequence[str]  # of --set

    def page(self, headline: str) -> Page:
        """Returns a page that names the config, and shows its text."""
        place = " ".join([str(self.path), *(f"--set {override}" for override in self.overrides)])
        return Page(self.command, self.path.stem, place, headline, config=self.path.read_text(encoding="utf-8"))


def write(page: Page, path: Path) -> None:
    """Writes a page. Raises ConfigError if an extra is not installed, or `path` cannot be written."""
    text = load_template().render(page._asdict(), version=__version__)
    with writing(path), atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")

"""Limits of tfpipe's modules, functions, names and keys, and of the tests' time: python tests/support/limits.py [ROOT].

Prints everything beyond them, and exceptions that nothing needs any more; the exit code is 1 if there is any. Nested
functions count as part of the outer one and on their own.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A limit that splits one concept over two modules is worse than a long module.
MODULE_LINES, FUNCTION_LINES, PARAMETERS = 400, 60, 6
# Modules of a folder, without its __init__.py.
MODULES, MODULES_OF = 15, {"tfpipe/data": 7}
# A docstring begins with the noun that it is about, or with the verb.
FIRST_WORDS = {"Of", "What", "Where", "Who", "Such", "As"}

LINES = {
    "tfpipe/**/*.py": 37_721,
    "tfpipe/data/sources/**/*.py": 8_245,
    "tfpipe/tools/**/*.py": 5_108,
    "tfpipe/training/**/*.py": 4_473,
    "tfpipe/native/**/*.[ch]": 7_679,
}
"""Lines of files by their pattern. They only fall: each change looks for what it makes needless."""

KEYS = 172
"""Keys of a config, the rows of docs/config.md. A new one looks for another that it can replace, or be a value of."""

GATE_CPU_S, NEW_FILE_CPU_S = 720, 5
"""CPU seconds of `make test` by tests/durations.tsv, so that it ends within ten minutes, and of a file without a row.

The sum only falls: what a new test takes, another one gives, or goes to tests/full.txt.
"""

TRIPLE = {"config": {"Config", "DataConfig"}, "world": {"World"}, "catalog": {"Catalog"}}
"""Names of parameters that rarely stand together, and the types that give them away under another name."""

PARTICIPLES = {
    *("found", "held", "known", "left", "listed", "mine", "own", "said"),
    *("AHEAD", "APART", "FEW", "FREED", "LEAST", "MANY", "MEASURED", "MOST", "SPARE", "TAKEN"),
}
"""Names that say nothing of what they hold, nor constants of what: the noun says it."""

PARTICIPLE = re.compile(r"_?(?:(?!seed|feed)[a-z]+ed|built|chosen|cut|drawn|given|made|taken|written)", re.IGNORECASE)
"""A function's or a class's name that says what was done, and not to what: it is a verb with its object, or a noun."""

FRAGMENT = re.compile(r"\b[Nn]one: ")
"""What None means, without a verb: "None: no limit", in place of "None if there is no limit"."""

MOST = {
    "functions that take a config, the world and a catalog": 0,
    "names that are participles": 0,
    "functions and classes named by a participle": 14,
    '"None: " in docstrings': 0,
    ".order(": 3,
    "catalog.source.": 0,
}
"""Patterns that may occur this often in the package: a Split has the three, computes the order, and asks its source.

Those of words only fall.
"""

DEFINED = ast.FunctionDef | ast.ClassDef

# Folders that read what users wrote.
READING = ("tfpipe/data/sources/", "tfpipe/data/catalog/", "tfpipe/data/annotations/")
FIRSTS = {
    "annotations/masks.py": (2, "a shape, and a box's edge"),
    "annotations/yolo.py": (2, "a line's fields, which has their number checked"),
    "catalog/boxes.py": (3, "all that there is, where one is read; an example for a message"),
    "catalog/entries.py": (1, "a part of a fixed form"),
    "catalog/filelist.py": (
        2,
        "an example for a message; a list of names without an ending, which all are then read as",
    ),
    "catalog/index.py": (1, "the begin of offsets"),
    "catalog/labels.py": (
        7,
        "words of a line, and an example for a message; all lines are then read in the form of the first",
    ),
    "catalog/layout.py": (1, "all paths are then checked against it"),
    "catalog/load.py": (2, "all paths are then checked against it; the only stamp"),
    "catalog/paths.py": (2, "one list where there is one; all are URLs or none, which is checked"),
    "catalog/splits.py": (2, "a matched word; names that are equal in all"),
    "catalog/table.py": (1, "the folder that all have"),
    "sources/catalogs.py": (6, "an example for a message"),
    "sources/data_files.py": (2, "a name's first letter; a match's groups"),
    "sources/described.py": (1, "an example for a message"),
    "sources/packed/archive.py": (4, "the best of a ranking without ties; the folder that all have"),
    "sources/packed/crops.py": (1, "a shape"),
    "sources/packed/examples.py": (2, "the edges, which have one length, as is checked"),
    "sources/packed/scan.py": (4, "the folder that all have"),
    "sources/packed/shards.py": (3, "a place's shard; the begin of offsets"),
    "sources/packed/source.py": (1, "the least of sorted numbers"),
    "sources/packed/stored.py": (1, "all are URLs or none, which is checked"),
    "sources/packed/tfrecords.py": (
        3,
        "an example for a message; the first byte; the form of names, in which all are counted",
    ),
    "sources/recognize.py": (
        4,
        "the only one, as is checked; a name's first letter; an archive tells the kind as which all are read",
    ),
    "sources/remote/cache.py": (1, "the oldest of sorted files"),
    "sources/remote/listing.py": (1, "all have one fetcher"),
    "sources/remote/ranges.py": (5, "the only part; the begin of sorted extents"),
    "sources/remote/url_path.py": (1, "all have one fetcher"),
    "sources/rows.py": (3, "parts of one table, whose columns are equal"),
    "sources/tables/columns.py": (4, "a form that all have, as is checked; a node's child"),
    "sources/tables/contents.py": (1, "the begin of offsets"),
    "sources/tables/further.py": (
        2,
        "parts of one table, whose columns are equal; a count that is the same in all rows, as is checked",
    ),
    "sources/tables/memory.py": (
        6,
        "the only table or name, as is checked; a pair",
    ),
    "sources/tables/row_groups.py": (1, "the begin of offsets"),
    "sources/tables/table.py": (4, "the only table, or the folder that all have"),
}
"""Places in tfpipe/data that take the first of several, by file: at most so many, and why that is no guess.

Of a user's data, util/ledger.only takes the only one, or refuses with all.
"""

PUBLIC = "the constructor that users call"
EXCEPTIONS: dict[str, str] = {
    "tfpipe/data/loader.py:Loader.__init__": PUBLIC,
    "tfpipe/data/pipeline.py:build_dataset": PUBLIC,
    "class Loader": "public: one for each framework",
    "tfpipe/cli/commands": "a module for each command",
}
"""Reasons by "path", "path:function", "class NAME" or "circle" of what may be beyond the limits."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, Function]]:
    """Yields the functions below `node`, with their names in the style of __qualname__."""
    for child in ast.iter_child_nodes(node):
        name = f"{outer}{getattr(child, 'name', '')}"
        if isinstance(child, Function):
            yield name, child
        yield from functions(child, f"{name}." if isinstance(child, Function | ast.ClassDef) else outer)


def parameters(function: Function) -> list[ast.arg]:
    """Returns the parameters of a function or a method, without `self` and `cls`."""
    args = function.args
    return [each for each in (*args.posonlyargs, *args.args, *args.kwonlyargs) if each.arg not in ("self", "cls")]


def takes_triple(function: Function) -> bool:
    """Returns whether a function takes a config, the world and a catalog, by the parameters' names or types."""
    received: set[str] = set()
    for each in parameters(function):
        types = set(re.findall(r"\w+", ast.unparse(each.annotation))) if each.annotation else set()
        received |= {name for name, kinds in TRIPLE.items() if each.arg == name or types & kinds}
    return received == TRIPLE.keys()


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring, those of attributes too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def participles(tree: ast.Module) -> int:
    """Returns how many times a variable or a parameter whose whole name is a participle is assigned.

    In a module that has a "top", "left" is a side.
    """
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names += [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    return sum(name in PARTICIPLES - ({"left"} if "top" in names else set()) for name in names)


def imported(node: ast.AST, known: Collection[str]) -> Iterator[str]:
    """Yields the modules that a module imports, for a type checker too; not the imports of its functions.

    `known` are the package's modules, which tell a module from another name.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (each.name for each in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            for each in child.names:
                target = f"{child.module}.{each.name}"
                yield target if target in known else child.module
        elif not isinstance(child, Function):
            yield from imported(child, known)


def beyond_in_module(name: str, text: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields everything in a module beyond the limits: its key in EXCEPTIONS, and the message."""
    lines = text.count("\n")
    if lines > MODULE_LINES:
        yield name, f"{name}: {lines} lines, more than {MODULE_LINES}"
    for function, node in functions(tree):
        assert node.end_lineno is not None
        length, count = node.end_lineno - node.lineno + 1, len(parameters(node))
        if length > FUNCTION_LINES:
            yield f"{name}:{function}", f"{name}:{node.lineno}: {function}: {length} lines, more than {FUNCTION_LINES}"
        if count > PARAMETERS:
            yield f"{name}:{function}", f"{name}:{node.lineno}: {function}: {count} parameters, more than {PARAMETERS}"
    for line, docstring in docstrings(tree):
        word = docstring.split(maxsplit=1)[0] if docstring.strip() else ""
        if word in FIRST_WORDS:
            yield f"{name}:{line}", f'{name}:{line}: a docstring begins with "{word}"'


def beyond_in_package(texts: dict[str, str], trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yields everything beyond the limits that no module shows alone."""
    classes = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{name}:{node.lineno}")
    for key, places in classes.items():
        if len(places) > 1:
            yield f"class {key}", f"class {key} has {len(places)} definitions, {', '.join(places)}: give each a name"
    triples, participle, named, fragment, *others = MOST
    found = {text: [name for name, content in texts.items() for _ in range(content.count(text))] for text in others}
    found[participle] = [name for name, tree in trees.items() for _ in range(participles(tree))]
    defined = [
        (name, node.name) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, DEFINED)
    ]
    found[named] = [f"{name}:{word}" for name, word in defined if PARTICIPLE.fullmatch(word)]
    sentences = [(name, text) for name, tree in trees.items() for _, text in docstrings(tree)]
    found[fragment] = [name for name, text in sentences for _ in FRAGMENT.findall(text)]
    found[triples] = [
        f"{name}:{f}" for name, tree in trees.items() for f, node in functions(tree) if takes_triple(node)
    ]
    for text, most in MOST.items():
        if len(found[text]) > most:
            counts = "".join(f"\n  {name} {count}" for name, count in Counter(found[text]).items())
            yield text, f"{text}: {len(found[text])}, more than {most}:{counts}"
    modules = {re.sub(r"(/__init__)?\.py$", "", name).replace("/", "."): tree for name, tree in trees.items()}
    graph = {module: modules.keys() & set(imported(tree, modules)) - {module} for module, tree in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "circle", f"modules import each other in a circle: {' -> '.join(error.args[1])}"


def firsts(tree: ast.Module) -> Iterator[int]:
    """Yields the lines that take the first of several, NAME[0] or next(iter(...)), outside messages."""
    shown = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Raise)]
    messages = {id(part) for node in shown for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            is_first = ast.unparse(node).startswith("next(iter(")
        else:
            is_first = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Attribute)
            is_first = is_first and isinstance(node.ctx, ast.Load) and ast.unparse(node.slice) == "0"
        if is_first and id(node) not in messages:
            yield node.lineno


def beyond_in_gate(root: Path) -> Iterator[tuple[str, str]]:
    """Yields the excess of the tests' recorded time, and the rows of files that are gone."""
    table = root / "tests/durations.tsv"
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]] if table.exists() else []
    cpu_s = {row[0]: float(row[2]) for row in rows}
    files = {str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py")}
    for name in sorted(name for name in cpu_s.keys() - files if name.startswith("tests/")):
        yield name, f"{name}: is in tests/durations.tsv and is gone; run make durations"
    total = sum(cpu_s.values()) + NEW_FILE_CPU_S * len(files - cpu_s.keys())
    if rows and total > GATE_CPU_S:
        most = sorted(cpu_s, key=lambda name: -cpu_s[name])[:5]
        longest = "".join(f"\n  {name} {cpu_s[name]:.0f}" for name in most)
        yield "gate", f"tests/durations.tsv: {total:.0f} CPU seconds, more than {GATE_CPU_S}; most of it:{longest}"


def beyond_in_keys(root: Path) -> Iterator[tuple[str, str]]:
    """Yields the excess of config keys, by their reference, which a test compares with the config."""
    reference = root / "docs/config.md"
    count = len(re.findall(r"^\| `", reference.read_text(), re.MULTILINE)) if reference.exists() else 0
    if count > KEYS:
        yield "keys", f"docs/config.md: {count} config keys, more than {KEYS}"


def beyond(root: Path) -> Iterator[tuple[str, str]]:
    """Yields everything beyond the limits: its key in EXCEPTIONS, and the message."""
    yield from beyond_in_gate(root)
    yield from beyond_in_keys(root)
    paths = sorted((root / "tfpipe").rglob("*.py"))
    texts = {str(path.relative_to(root)): path.read_text() for path in paths}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    for name, tree in trees.items():
        yield from beyond_in_module(name, texts[name], tree)
    for folder in sorted({path.parent for path in paths}):
        name, count = str(folder.relative_to(root)), sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        most = MODULES_OF.get(name, MODULES)
        if count > most:
            yield name, f"{name}: {count} modules, more than {most}"
    for pattern, most in LINES.items():
        count = sum(path.read_text().count("\n") for path in root.glob(pattern))
        if count > most:
            yield f"lines of {pattern}", f"{pattern}: {count} lines, more than {most}"
    for name, tree in trees.items():
        if name.startswith(READING):
            places, (most, reason) = list(firsts(tree)), FIRSTS.get(name.removeprefix("tfpipe/data/"), (0, "none is"))
            if len(places) > most:
                times = f"{len(places)} times the first of several, more than {most} ({reason})"
                yield "firsts", f"{name}: {times}: {places}"
    yield from beyond_in_package(texts, trees)


def main(root: Path) -> int:
    """Prints what is beyond the limits; returns the exit code."""
    found = dict(beyond(root))
    problems = [message for key, message in found.items() if key not in EXCEPTIONS]
    problems += [f"{key}: is within the limits; take it out of EXCEPTIONS" for key in EXCEPTIONS.keys() - found.keys()]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT))

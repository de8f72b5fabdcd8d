"""Limits of tfpipe's modules, functions, folders and docstrings: python tests/support/limits.py [ROOT].

Prints everything beyond them, and exceptions that nothing needs any more; the exit code is 1 if there is any. Nested
functions count as part of the outer one and on their own.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A limit that splits one concept over two modules is worse than a long module.
MODULE_LINES, FUNCTION_LINES = 400, 60
# Modules of a folder, without its __init__.py.
MODULES, MODULES_OF = 15, {"tfpipe/data": 5}
# A docstring begins with the noun that it is about, or with the verb.
FIRST_WORDS = {"Of", "What", "Where", "Who", "Such", "As"}

EXCEPTIONS: dict[str, str] = {}
"""Reasons by "path" or "path:function" of what may be longer."""


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yields the functions below `node`, with their names in the style of __qualname__."""
    for child in ast.iter_child_nodes(node):
        name = f"{outer}{getattr(child, 'name', '')}"
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(child, f"{name}." if is_scope else outer)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring, those of attributes too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def beyond(root: Path) -> Iterator[tuple[str, str]]:
    """Yields everything beyond the limits: its key in EXCEPTIONS, and the message."""
    for path in sorted((root / "tfpipe").rglob("*.py")):
        name, text = str(path.relative_to(root)), path.read_text()
        tree, lines = ast.parse(text), text.count("\n")
        if lines > MODULE_LINES:
            yield name, f"{name}: {lines} lines, more than {MODULE_LINES}"
        for function, node in functions(tree):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                key = f"{name}:{function}"
                yield key, f"{name}:{node.lineno}: {function}: {length} lines, more than {FUNCTION_LINES}"
        for line, docstring in docstrings(tree):
            word = docstring.split(maxsplit=1)[0] if docstring.strip() else ""
            if word in FIRST_WORDS:
                yield f"{name}:{line}", f'{name}:{line}: a docstring begins with "{word}"'
    for folder in sorted({path.parent for path in (root / "tfpipe").rglob("*.py")}):
        name, count = str(folder.relative_to(root)), sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        most = MODULES_OF.get(name, MODULES)
        if count > most:
            yield name, f"{name}: {count} modules, more than {most}"


def main(root: Path) -> int:
    """Prints what is beyond the limits; returns the exit code."""
    found = dict(beyond(root))
    problems = [message for key, message in found.items() if key not in EXCEPTIONS]
    problems += [f"{key}: is within the limits; take it out of EXCEPTIONS" for key in EXCEPTIONS.keys() - found.keys()]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT))

"""Private and undocumented names of other libraries that the package uses, and the versions that have them.

A new version of a library may change them: `python -m pytest tests/test_foreign.py` says which are gone. Those of
TensorFlow are used in tfpipe/util/tensorflow_api.py alone. `make versions` tries its and Keras' oldest.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

VERSIONS = {
    "tensorflow": ("2.15.1", "2.21.0"),
    "keras": ("3.5.0", "3.15.1"),
    "fsspec": ("2025.3.0", "2026.9.0"),
    "s3fs": ("2025.3.0", "2026.9.0"),
    "lxml": ("5.0.0", "6.1.3"),
    "python": ("3.10", "3.13"),
}
"""The oldest and the newest version of each library with which the names were tried."""

NAMES = {
    "tensorflow": {
        "tensorflow.python.data.util.structure": "the values of an iterator that can be cancelled",
        "tensorflow.python.eager.context": "the same",
        "tensorflow.python.eager.cancellation.CancellationManager": "ends an iterator's call from another thread",
        "tensorflow.python.eager.execute.execute_with_cancellation": "the same",
        "tensorflow.python.framework.config.disable_op_determinism": "a run ends what it began",
        "tensorflow.python.framework.config.is_op_determinism_enabled": "the clock is an op that it refuses",
        "tensorflow.python.lib.io.tf_record.tf_record_random_reader": "reads a record at its offset",
        "_iterator_resource": "an iterator's handle",
        "_dataset": "an iterator's dataset, to close it at exit",
        "_inputs": "the datasets that a dataset was made of",
    },
    "keras": {
        "_compute_loss": "the loss of a training step of several ranks",
        "_loss_tracker": "its mean in the logs",
        "_update_metrics_variables": "the metrics of JAX' stateless step",
        "_iterations": "the schedule's position, also while gradients are accumulated",
        "_compile_metrics": "the compiled metrics",
        "_user_metrics": "those of them that the config names",
        "_model": "whether a callback has its model already",
        "_direction": "whether a metric is better when it is larger",
    },
    "fsspec": {
        "_ls": "lists a folder, asynchronously, like the next ones",
        "_strip_protocol": "a URL's path",
        "_info": "a file's size",
        "_cat_file": "a file's bytes, or a range of them",
    },
    "datasets": {"_indices": "the rows that a Hugging Face dataset has left"},
    "lxml": {"_Element": "a type"},
    "python": {
        "_ActionsContainer": "argparse: the type of a parser and of a group",
        "_Popen": "multiprocessing: processes that do not import the user's script",
        "_exit": "os: public, in spite of its name",
    },
}
"""By library: modules that its documentation does not have, and attributes, with the reason."""

OF_S3FS = {
    "anon": "whether requests are signed",
    "key": "what signs them, as the next ones",
    "secret": "the same",
    "token": "the same",
    "client_kwargs": "what libcurl does not obey, so that s3fs makes the requests, as the next ones",
    "config_kwargs": "the same",
    "req_kw": "the same",
    "s3_additional_kwargs": "the same",
    "version_aware": "the same",
    "set_session": "connects, as the next one, and has the region",
    "get_s3": "the same",
    "retries": "tfpipe repeats requests itself",
}
"""Attributes of s3fs.S3FileSystem that its documentation does not have; `session` is there once it is connected."""

OF_TUPLES = {"_asdict", "_replace", "_fields"}


def uses(package: Path) -> Iterator[str]:
    """Yields the private names of others that a package uses: modules of TensorFlow, and attributes not its own."""
    trees = [ast.parse(path.read_text()) for path in package.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own -= {"_Popen", "_dataset"}  # the first overrides multiprocessing's, the second is another's besides
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and re.match(r"tensorflow\.python|keras\.src", node.module or ""):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        names = [node.attr] if isinstance(node, ast.Attribute) else []
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "getattr"
            and isinstance(node.args[1], ast.Constant)
        ):
            names = [str(node.args[1].value)]
        yield from (name for name in names if re.fullmatch(r"_[A-Za-z]\w+", name) and name not in own | OF_TUPLES)

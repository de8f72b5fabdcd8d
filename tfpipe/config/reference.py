"""The config reference in Markdown, docs/config.md, generated from the config's pydantic models."""

import json
from collections.abc import Iterator
from typing import Any

from tfpipe.config import Config

HEAD = """\
# The config, key by key

<!-- Made by `tfpipe config --markdown > docs/config.md`: change the docstrings in tfpipe/config/ instead. -->

A config is a JSON file; only `data.train_filelist`, or `data.source` in its place, has to be given. A relative path is
relative to the file. `tfpipe config -c FILE` prints a config with all defaults filled in, `tfpipe config --schema` the
JSON schema that editors complete from.

`--set data.batch_size=64` changes a key for one run; a later `--set` of the same key wins. A value is JSON, or a text
without quotes: `--set data.cache=/disk`, `--set data.cache=null`, `--set 'data.classes=["cat", "dog"]'`. None, True and
False are read as null, true and false; an empty value, or a text in spoilt quotes, is an error.

Of two settings that contradict each other, none is ignored: a key that stands twice in the file is an error, and so are
`data.source` with `data.train_filelist`, or `optimizer.learning_rate` with another `optimizer.args.learning_rate` or
another rate in `lr_schedule.args`. The error names both, with their values.
"""
BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}

Schema = dict[str, Any]


def markdown() -> str:
    """Returns the reference: every key with its type, default and meaning, group by group, each section once."""
    root = Config.model_json_schema()
    groups = [group for path, schema in root["properties"].items() for group in _groups(path, schema, root["$defs"])]
    headings: dict[str, str] = {}
    for path, name in groups:
        # The shortest path: "data.layout", not "data.targets.masks".
        headings[name] = min(headings.get(name, path), path, key=lambda text: (text.count("."), len(text)))
    described = (_render(path, root["$defs"][name], headings) for path, name in groups if headings[name] == path)
    return "\n".join([HEAD, *described])


def _groups(path: str, schema: Schema, sections: dict[str, Schema]) -> Iterator[tuple[str, str]]:
    """Yields path and name of the sections within a key, starting with its own.

    A path is e.g. "data.parallel", or "data.train_filelist[]" for the elements of a list.
    """
    for member in _members(schema):
        if "$ref" in member:
            name = _name(member)
            # Members of a union that is told apart by names: each has a group of its own.
            yield f"{path} {name}" if "oneOf" in schema else path, name
            for key, inner in sections[name]["properties"].items():
                yield from _groups(f"{path}.{key}", inner, sections)
        elif isinstance(member.get("items"), dict):
            yield from _groups(f"{path}[]", member["items"], sections)


def _name(schema: Schema) -> str:
    """Returns the name of the section that a schema refers to."""
    name: str = schema["$ref"].rpartition("/")[2]
    return name


def _render(path: str, group: Schema, headings: dict[str, str]) -> str:
    return "\n".join(
        [
            f"{'###' if '.' in path else '##'} {path}",
            "",
            group["description"],
            "",
            "| Key | Type | Default | Meaning |",
            "|---|---|---|---|",
            # The name of a step is in its heading.
            *(_row(group, key, headings) for key in group["properties"] if key != "name" or " " not in path),
            "",
        ]
    )


def _row(group: Schema, key: str, headings: dict[str, str]) -> str:
    schema = group["properties"][key]
    members = _members(schema)
    types = " or ".join(_type(member, headings) for member in members)
    if key in group.get("required", []):
        default = "required"
    elif isinstance(schema["default"], dict) and any("$ref" in member for member in members):
        default = "as there"
    else:
        default = f"`{json.dumps(schema['default'])}`"
    meaning = " ".join(schema.get("description", "").split())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{key}`", types, default, meaning)) + " |"


def _type(schema: Schema, headings: dict[str, str]) -> str:
    if "$ref" in schema:
        heading = headings[_name(schema)]
        return f"[{heading.rpartition(' ')[2]}](#{anchor(heading)})"
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in choices)
    if schema.get("type") == "array":
        places = schema.get("prefixItems")
        if places:
            return "[" + ", ".join(_type(item, headings) for item in places) + "]"
        several = ", " if "oneOf" in schema["items"] else " or "
        return "list of " + several.join(_type(member, headings) for member in _members(schema["items"]))
    bounds = " and ".join(f"{sign} {schema[name]}" for name, sign in BOUNDS.items() if name in schema)
    return f"{schema.get('format', schema.get('type', 'anything'))} {bounds}".strip()


def _members(schema: Schema) -> list[Schema]:
    """Returns the members of a union, tagged or not; for any other schema, itself."""
    members: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return members


def anchor(heading: str) -> str:
    """Returns GitHub's link anchor of a heading."""
    letters = (letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return "".join(letters).replace(" ", "-")

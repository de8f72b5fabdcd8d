"""The config reference in Markdown, from the config's pydantic models: python docs/hooks/keys.py > docs/config.md."""

import json
from collections.abc import Iterator
from typing import Any

from tfpipe.config import Config

HEAD = """\
# The config, key by key

<!-- Made by `python docs/hooks/keys.py > docs/config.md`: change the docstrings in tfpipe/config/ instead. -->

A config is a JSON file that needs one key: `data.train_filelist`, or `data.source` in its place. Relative paths are
relative to the file. In paths and URLs, `~` is the home folder, `$NAME` or `${NAME}` a variable, which must be set, and
`$$` a `$`. `tfpipe config -c FILE` prints a config with all defaults; `tfpipe config --schema` prints the JSON schema
that editors complete from.

`--set data.batch_size=64` changes a key for one run; a later `--set` of the same key wins. A value is JSON, or a text
without quotes: `--set data.cache=/disk`, `--set data.cache=null`, `--set 'data.classes=["cat", "dog"]'`. None, True and
False are read as null, true and false; an empty value, or a text in spoilt quotes, is an error.

Contradicting settings are an error that names both with their values: a key that stands twice, `data.source` next to
`data.train_filelist`, or `optimizer.learning_rate` next to another rate in `optimizer.args` or `lr_schedule.args`.
"""
STEPS = "A step is a name, or an object of its name and its arguments. Several steps have these keys:"
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
    steps = [name for name, heading in headings.items() if " " in heading]
    shared = shared_keys([root["$defs"][name] for name in steps])
    sections = {name: _render(path, root["$defs"][name], headings, shared) for name, path in headings.items()}
    common = _render(headings[steps[0]].split()[0], {"description": STEPS, "properties": shared}, headings, {})
    sections[steps[0]] = f"{common}\n{sections[steps[0]]}"
    return "\n".join([HEAD, *(sections[name] for path, name in groups if headings[name] == path)])


def shared_keys(steps: list[Schema]) -> dict[str, Schema]:
    """Returns the keys that several steps have, all with one type and one meaning, without their defaults."""
    same: dict[str, list[Schema]] = {}
    for key, schema in ((key, dict(schema)) for step in steps for key, schema in step["properties"].items()):
        schema.pop("default", None)
        same.setdefault(key, []).append(schema)
    return {key: first for key, (first, *rest) in same.items() if rest and all(other == first for other in rest)}


def _groups(path: str, schema: Schema, schemas: dict[str, Schema]) -> Iterator[tuple[str, str]]:
    """Yields path and name of the sections within a key, starting with its own.

    A path is e.g. "data.parallel", "data.train_filelist[]" for the elements of a list, or "data.augment[] RandAugment".
    """
    for member in _members(schema):
        if "$ref" in member:
            name = _name(member)
            # Members of a union that is told apart by names: each has a group of its own.
            yield f"{path} {name}" if "oneOf" in schema else path, name
            for key, inner in schemas[name]["properties"].items():
                yield from _groups(f"{path}.{key}", inner, schemas)
        elif isinstance(member.get("items"), dict):
            yield from _groups(f"{path}[]", member["items"], schemas)


def _name(schema: Schema) -> str:
    """Returns the name of the section that a schema refers to."""
    name: str = schema["$ref"].rpartition("/")[2]
    return name


def _render(path: str, group: Schema, headings: dict[str, str], shared: dict[str, Schema]) -> str:
    # The name of a step is in its heading; of the keys that steps share it has the defaults alone.
    keys = [key for key in group["properties"] if " " not in path or key not in {"name", *shared}]
    defaults = [f"`{key}`: {_default(group, key)}" for key in group["properties"] if " " in path and key in shared]
    lines = [f"{'###' if '.' in path else '##'} {path}", "", group["description"]]
    lines[-1] += f" Defaults: {', '.join(defaults)}." if defaults else ""
    if keys:
        lines += ["", "| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_row(group, key, headings) for key in keys), ""])


def _row(group: Schema, key: str, headings: dict[str, str]) -> str:
    schema = group["properties"][key]
    types = " or ".join(_type(member, headings) for member in _members(schema))
    meaning = " ".join(schema.get("description", "").split())
    cells = (f"`{key}`", types, _default(group, key), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(group: Schema, key: str) -> str:
    schema = group["properties"][key]
    if key in group.get("required", []):
        return "required"
    if "default" not in schema:
        return "by step"
    if isinstance(schema["default"], dict) and any("$ref" in member for member in _members(schema)):
        return "as there"
    return f"`{json.dumps(schema['default'])}`"


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
            types = [_type(item, headings) for item in places]
            return f"[{len(types)} x {types[0]}]" if len({*types}) == 1 else f"[{', '.join(types)}]"
        items = _members(schema["items"])
        if "oneOf" in schema["items"]:
            union = headings[_name(items[0])].partition(" ")[0]
            return f"list of [steps](#{anchor(union)})"
        return "list of " + " or ".join(_type(member, headings) for member in items)
    bounds = " and ".join(f"{sign} {schema[name]:.6g}" for name, sign in BOUNDS.items() if name in schema)
    return f"{schema.get('format', schema.get('type', 'anything'))} {bounds}".strip()


def _members(schema: Schema) -> list[Schema]:
    """Returns the members of a union, tagged or not; for any other schema, itself."""
    members: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return members


def anchor(heading: str) -> str:
    """Returns GitHub's link anchor of a heading."""
    letters = (letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return "".join(letters).replace(" ", "-")


if __name__ == "__main__":
    print(markdown(), end="")

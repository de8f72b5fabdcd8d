"""The config reference in Markdown, docs/config.md, generated from the config's pydantic models."""

import json
from collections.abc import Iterator
from typing import Any

from tfpipe.config import Config

HEAD = """\
# The config, key by key

<!-- Made by `tfpipe config --markdown > docs/config.md`: change the docstrings in tfpipe/config/ instead. -->

A config is a JSON file that needs one key: `data.train_filelist`, or `data.source` in its place. Relative paths are
relative to the file. `tfpipe config -c FILE` prints a config with all defaults; `tfpipe config --schema` prints the JSON
schema that editors complete from.

`--set data.batch_size=64` changes a key for one run; a later `--set` of the same key wins. A value is JSON, or a text
without quotes: `--set data.cache=/disk`, `--set data.cache=null`, `--set 'data.classes=["cat", "dog"]'`. None, True and
False are read as null, true and false; an empty value, or a text in spoilt quotes, is an error.

Contradicting settings are an error that names both with their values: a key that stands twice, `data.source` next to
`data.train_filelist`, or `optimizer.learning_rate` next to another rate in `optimizer.args` or `lr_schedule.args`.
"""
STEPS = """\
The steps of `data.augment` and of a view's `augment`, each a name or an object of its name and its arguments. Several
steps have these keys, with defaults of their own:"""
TABLE = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
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
    unions: dict[str, list[Schema]] = {}
    for name, heading in headings.items():
        if " " in heading:
            unions.setdefault(heading.partition(" ")[0], []).append(root["$defs"][name])
    sections = [HEAD]
    for path, name in groups:
        if headings[name] != path:
            continue
        union = path.partition(" ")[0]
        shared = shared_keys(unions.get(union, []))
        if shared and unions[union][0] is root["$defs"][name]:
            sections.append(_render_union(union, unions[union], headings, shared))
        sections.append(_render(path, root["$defs"][name], headings, shared))
    return "\n".join(sections)


def shared_keys(members: list[Schema]) -> set[str]:
    """Returns the keys that several members of a union have, all with one type and one meaning."""
    rows: dict[str, list[str]] = {}
    for group in members:
        for key, schema in group["properties"].items():
            rows.setdefault(key, []).append(json.dumps({**schema, "default": None}))
    return {key for key, texts in rows.items() if key != "name" and len(texts) > 1 and len({*texts}) == 1}


def _groups(path: str, schema: Schema, known: dict[str, Schema]) -> Iterator[tuple[str, str]]:
    """Yields path and name of the sections within a key, starting with its own.

    A path is e.g. "data.parallel", "data.train_filelist[]" for the elements of a list, or "data.augment[] RandAugment".
    """
    for member in _members(schema):
        if "$ref" in member:
            name = _name(member)
            # Members of a union that is told apart by names: each has a group of its own.
            yield f"{path} {name}" if "oneOf" in schema else path, name
            for key, inner in known[name]["properties"].items():
                yield from _groups(f"{path}.{key}", inner, known)
        elif isinstance(member.get("items"), dict):
            yield from _groups(f"{path}[]", member["items"], known)


def _name(schema: Schema) -> str:
    """Returns the name of the section that a schema refers to."""
    name: str = schema["$ref"].rpartition("/")[2]
    return name


def _render(path: str, group: Schema, headings: dict[str, str], shared: set[str]) -> str:
    """Returns a section: its table, and the defaults of the keys that the union's section describes."""
    # The name of a step is in its heading.
    keys = [key for key in group["properties"] if key not in shared and (key != "name" or " " not in path)]
    defaults = [f"`{key}`: {_default(group, key)}" for key in group["properties"] if key in shared]
    table = [*TABLE, *(_row(group, key, headings, _default(group, key)) for key in keys), ""] if keys else []
    described = [group["description"], *([f"Defaults: {', '.join(defaults)}."] if defaults else [])]
    return "\n".join([f"{'###' if '.' in path else '##'} {path}", "", " ".join(described), "", *table])


def _render_union(path: str, members: list[Schema], headings: dict[str, str], shared: set[str]) -> str:
    """Returns the section of what the members of a union share."""
    owners = {key: group for group in members for key in group["properties"] if key in shared}
    rows = [_row(group, key, headings, "by step") for key, group in owners.items()]
    return "\n".join([f"### {path}", "", STEPS, "", *TABLE, *rows, ""])


def _row(group: Schema, key: str, headings: dict[str, str], default: str) -> str:
    schema = group["properties"][key]
    types = " or ".join(_type(member, headings) for member in _members(schema))
    meaning = " ".join(schema.get("description", "").split())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{key}`", types, default, meaning)) + " |"


def _default(group: Schema, key: str) -> str:
    schema = group["properties"][key]
    if key in group.get("required", []):
        return "required"
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
    bounds = " and ".join(f"{sign} {schema[name]}" for name, sign in BOUNDS.items() if name in schema)
    return f"{schema.get('format', schema.get('type', 'anything'))} {bounds}".strip()


def _members(schema: Schema) -> list[Schema]:
    """Returns the members of a union, tagged or not; for any other schema, itself."""
    members: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return members


def anchor(heading: str) -> str:
    """Returns GitHub's link anchor of a heading."""
    kept = (letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return "".join(kept).replace(" ", "-")

"""Configuration templates of AppImages, rendered for one pod. Pure, and the same wherever it is done.

What a template may name, upper or lower case:

| variable | tasks | deployments |
|---|---|---|
| every variable that a container's `env` gives a plain value | yes | yes |
| `KUSCIA_DOMAIN_ID`, `ALLOCATED_PORTS`, `KUSCIA_PORT_<NAME>_NUMBER` | yes | yes |
| `TASK_ID`, `TASK_INPUT_CONFIG`, `TASK_CLUSTER_DEFINE` | yes | |
| `SERVING_ID`, `INPUT_CONFIG`, `CLUSTER_DEFINE` | | yes |

Anything else is empty, as in Kuscia. So are `KUSCIA_API_TOKEN` and `KUSCIA_DOMAIN_KEY_DATA`, which Kuscia does give out: the
first lets its holder act for the whole party, the second is the party's private key. A rendered file is kept in a ConfigMap
and read by an application that works for several parties, so neither belongs there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.objects.config_templates import Part, Query, TemplateSyntaxError, Variable, parse_template

WITHHELD: Final = frozenset({"KUSCIA_API_TOKEN", "KUSCIA_DOMAIN_KEY_DATA"})
RENDERED_BYTES_MAX: Final = 1_000_000
"""Of all files of one pod together: a ConfigMap holds a mebibyte."""


class RenderError(ValueError):
    """Which AppImage, which file, where, and what is wrong."""


def render_all(app_image: str, templates: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Each file rendered. RenderError names the AppImage, the file and the position."""
    known = {name.upper(): value for name, value in variables.items() if name.upper() not in WITHHELD}
    parsed: dict[str, Any] = {}
    rendered: dict[str, str] = {}
    room_bytes = RENDERED_BYTES_MAX
    for file, text in templates.items():
        where = f"AppImage {app_image}, configTemplates[{file}]"
        try:
            parts = parse_template(text)
        except TemplateSyntaxError as error:
            raise RenderError(f"{where}, {error}") from None
        rendered[file], room_bytes = _render(where, parts, known, parsed, room_bytes)
    return rendered


def render(app_image: str, file: str, text: str, variables: Mapping[str, str]) -> str:
    """One file rendered; see `render_all`."""
    return render_all(app_image, {file: text}, variables)[file]


def _render(
    where: str, parts: list[Part], known: Mapping[str, str], parsed: dict[str, Any], room_bytes: int
) -> tuple[str, int]:
    pieces = []
    for part in parts:
        if isinstance(part, Variable):
            piece = escaped(known.get(part.name, ""))
        elif isinstance(part, Query):
            piece = _shown(_look(_value(part.name, known, parsed), part))
        else:
            piece = part
        room_bytes -= len(piece.encode("utf-8", "surrogatepass"))
        if room_bytes < 0:
            raise RenderError(
                f"{where}: the rendered files of a pod would have more than {RENDERED_BYTES_MAX:,} bytes; "
                "make the task's input smaller, or name fewer variables"
            )
        pieces.append(piece)
    return "".join(pieces), room_bytes


def escaped(value: str) -> str:
    """`value` as it stands between the quotes of a JSON string."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _value(name: str, known: Mapping[str, str], parsed: dict[str, Any]) -> Any:
    """The variable's JSON when it holds an object or a list, else its text. Parsed once for all files of a pod."""
    if name not in parsed:
        text = known.get(name)
        value: Any = text
        if text is not None and text.lstrip()[:1] in ("{", "["):
            try:
                value = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
            except (msgspec.DecodeError, RecursionError):
                value = text
        parsed[name] = value
    return parsed[name]


def _look(value: Any, query: Query) -> Any:
    """What the query finds; None when there is no such thing."""
    for step in query.steps:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, dict) and isinstance(step, int):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step] if -len(value) <= step < len(value) else None
        elif isinstance(value, list) and isinstance(step, tuple):
            key, wanted = step
            found = (one for one in value if isinstance(one, dict) and key in one and _shown(one[key]) == wanted)
            value = next(found, None)
        else:
            return None
        if value is None:
            return None
    return value


def _shown(value: Any) -> str:
    """Text as it is, anything else as JSON; nothing when there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return ""

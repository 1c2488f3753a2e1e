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
COMPARED_MAX: Final = 100_000
"""List elements that the `[key=value]` steps of one pod's files may look at; how long lists are is the task's to say."""


class RenderError(ValueError):
    """Which AppImage, which file, where, and what is wrong."""


def render_all(app_image: str, templates: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Each file rendered. RenderError names the AppImage, the file and the position."""
    known = _Known({name.upper(): value for name, value in variables.items() if name.upper() not in WITHHELD})
    rendered: dict[str, str] = {}
    room_bytes = RENDERED_BYTES_MAX
    for file, text in templates.items():
        where = f"AppImage {app_image}, configTemplates[{file}]"
        try:
            parts = parse_template(text)
        except TemplateSyntaxError as error:
            raise RenderError(f"{where}, {error}") from None
        rendered[file], room_bytes = _render(where, parts, known, room_bytes)
    return rendered


def render(app_image: str, file: str, text: str, variables: Mapping[str, str]) -> str:
    """One file rendered; see `render_all`."""
    return render_all(app_image, {file: text}, variables)[file]


def _render(where: str, parts: list[Part], known: _Known, room_bytes: int) -> tuple[str, int]:
    pieces = []
    for part in parts:
        if isinstance(part, Variable):
            piece = escaped(known.texts.get(part.name, ""))
        elif isinstance(part, Query):
            piece = _shown(known.look(part))
            if known.compared > COMPARED_MAX:
                raise RenderError(
                    f"{where}: the [key=value] steps of a pod's files would look at more than {COMPARED_MAX:,} list elements; "
                    "make the lists of the task's input shorter, or write [0], [1] where the place is known"
                )
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


class _Known:
    """The variables of one pod, and how much of them its queries have looked at."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.compared = 0
        self._parsed: dict[str, Any] = {}

    def look(self, query: Query) -> Any:
        """What the query finds; None when there is no such thing."""
        value = self._value(query.name)
        for step in query.steps:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, dict) and isinstance(step, int):
                value = value.get(str(step))
            elif isinstance(value, list) and isinstance(step, int):
                value = value[step] if -len(value) <= step < len(value) else None
            elif isinstance(value, list) and isinstance(step, tuple):
                value = self._find(value, *step)
            else:
                return None
            if value is None:
                return None
        return value

    def _value(self, name: str) -> Any:
        """The variable's JSON when it holds an object or a list, else its text. Parsed once for all files of a pod."""
        if name not in self._parsed:
            text = self.texts.get(name)
            value: Any = text
            if text is not None and text.lstrip()[:1] in ("{", "["):
                try:
                    value = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
                except (msgspec.DecodeError, RecursionError):
                    value = text
            self._parsed[name] = value
        return self._parsed[name]

    def _find(self, elements: list[Any], key: str, wanted: str) -> Any:
        """The first element whose `key` is shown as `wanted`. One that holds an object or a list never is: a step can't have
        brackets inside."""
        for one in elements:
            self.compared += 1
            if self.compared > COMPARED_MAX:
                return None
            if isinstance(one, dict) and key in one and not isinstance(one[key], dict | list) and _shown(one[key]) == wanted:
                return one
        return None


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

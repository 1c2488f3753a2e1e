from __future__ import annotations

import pytest

from muster.cli.output import (
    Layout,
    Table,
    TableColumn,
    cell_text,
    qualified_name,
    simple_table,
    width_of,
    without_managed_fields,
)
from muster.objects.resources import Resource

WIRE = {
    "columnDefinitions": [{"name": "Name", "priority": 0}, {"name": "Status"}, {"name": "Node", "priority": 1}],
    "rows": [
        {"cells": ["a", "Running", "n1"], "object": {"metadata": {"namespace": "x", "labels": {"b": "2", "a": "1"}}}},
        {"cells": ["longer", None, "n2"], "object": {"metadata": {"namespace": "yy"}}},
    ],
}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        pytest.param(Layout(), ["NAME     STATUS", "a        Running", "longer   <none>"], id="plain"),
        pytest.param(
            Layout(wide=True), ["NAME     STATUS    NODE", "a        Running   n1", "longer   <none>    n2"], id="wide"
        ),
        pytest.param(Layout(headers=False), ["a        Running", "longer   <none>"], id="no headers"),
        pytest.param(
            Layout(namespaces=True),
            ["NAMESPACE   NAME     STATUS", "x           a        Running", "yy          longer   <none>"],
            id="all namespaces",
        ),
        pytest.param(
            Layout(labels=True),
            ["NAME     STATUS    LABELS", "a        Running   a=1,b=2", "longer   <none>    <none>"],
            id="labels",
        ),
    ],
)
def test_layout(layout: Layout, expected: list[str]) -> None:
    assert layout.lines(Table.from_wire(WIRE)) == expected


def test_a_watch_keeps_its_columns_in_line_and_prints_headers_once() -> None:
    layout = Layout()
    first = layout.lines(Table.from_wire(WIRE))
    again = layout.lines(Table.from_wire({"rows": [{"cells": ["b", "Failed", "n"]}]}))
    assert first[0].startswith("NAME")
    assert again == ["b        Failed"]


def test_rows_that_are_shorter_than_the_columns() -> None:
    table = Table([TableColumn("Name"), TableColumn("Age")], [["a"]])
    assert Layout().lines(table) == ["NAME   AGE", "a      <none>"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "<none>"),
        ("", "<none>"),
        (0, "0"),
        (True, "true"),
        (["a", "b"], "a,b"),
        ({"a": 1}, '{"a":1}'),
        ("line\nbreak\x1b[31m", "line break[31m"),
        ("x" * 3000, "x" * 1999 + "…"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell_text(value) == text


def test_wide_characters_take_two_columns() -> None:
    assert width_of("任务") == 4
    assert simple_table(["A", "B"], [["任务", "x"], ["abcd", "y"]]).splitlines() == ["A      B", "任务   x", "abcd   y"]


def test_names_can_be_given_back() -> None:
    pod = Resource(group="", version="v1", kind="Pod", plural="pods", singular="pod")
    job = Resource(group="kuscia.secretflow", version="v1alpha1", kind="KusciaJob", plural="kusciajobs")
    assert qualified_name(pod, "a") == "pod/a"
    assert qualified_name(job, "a") == "kusciajob.kuscia.secretflow/a"


def test_managed_fields_are_hidden_without_touching_the_object() -> None:
    obj = {"metadata": {"name": "a", "managedFields": []}}
    assert without_managed_fields(obj) == {"metadata": {"name": "a"}}
    assert "managedFields" in obj["metadata"]

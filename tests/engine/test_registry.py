"""The registry: built-in plugins by name, third-party ones by entry point, and broken ones left out by name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import muster.engine.plugins as package
from muster.engine.plugin import Plugin
from muster.engine.profile import POINTS
from muster.engine.registry import BUILTIN, ENGINE_OWN, NOT_HERE, PLUGINS_MAX, Registry, builtin_plugins, discover

GROUP = "muster.plugins"
MODULE = "muster_test_plugins"


class Good(Plugin):
    name = "Good"


class Nameless(Plugin):
    pass


class Otherwise(Plugin):
    name = "SomethingElse"


class NodeName(Plugin):
    name = "NodeName"


class WrongArgs(Plugin):
    name = "WrongArgs"
    Args = dict  # type: ignore[assignment]


class Twin(Plugin):
    name = "Good"


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    for member in (Good, Nameless, Otherwise, NodeName, WrongArgs, Twin):
        setattr(module, member.__name__, member)
    monkeypatch.setitem(sys.modules, MODULE, module)


def entry(name: str, attribute: str) -> EntryPoint:
    return EntryPoint(name, f"{MODULE}:{attribute}", GROUP)


def test_every_built_in_name_has_its_plugin() -> None:
    for name, plugin in builtin_plugins().items():
        assert plugin.name == name
        assert issubclass(plugin.Args, msgspec.Struct)
        assert plugin.__module__.startswith("muster.engine.plugins.")


def test_every_plugin_file_is_registered() -> None:
    """A class with a say that nobody can name in a profile would be dead."""
    found = {
        member.name
        for info in pkgutil.iter_modules(package.__path__)
        for member in vars(importlib.import_module(f"{package.__name__}.{info.name}")).values()
        if isinstance(member, type) and issubclass(member, Plugin) and member.name
        if any(getattr(member, point) is not getattr(Plugin, point) for point in POINTS)
    }
    assert found <= set(BUILTIN), f"not in BUILTIN: {sorted(found - set(BUILTIN))}"


def test_names_do_not_overlap() -> None:
    assert not set(BUILTIN) & ENGINE_OWN
    assert not set(BUILTIN) & set(NOT_HERE)


def test_a_good_entry_point_is_found() -> None:
    registry = discover([entry("Good", "Good")])
    assert registry["Good"] is Good
    assert registry.problems == ()
    assert "Good" in registry
    assert not registry.is_builtin("Good")
    assert set(registry) == {*BUILTIN, "Good"}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        pytest.param(EntryPoint("X", "no_such_module_anywhere:X", GROUP), "ModuleNotFoundError", id="no such module"),
        pytest.param(entry("X", "Missing"), "AttributeError", id="no such attribute"),
        pytest.param(EntryPoint("X", "math:pi", GROUP), "not a class derived from muster.engine.plugin.Plugin", id="no class"),
        pytest.param(EntryPoint("X", "pathlib:Path", GROUP), "not a class derived", id="another class"),
        pytest.param(entry("X", "Nameless"), "the class has no name", id="no name"),
        pytest.param(entry("X", "Otherwise"), "the class calls itself 'SomethingElse'", id="another name"),
        pytest.param(entry("NodeName", "NodeName"), "the name belongs to a plugin of Muster", id="a name of ours"),
        pytest.param(entry("WrongArgs", "WrongArgs"), "not a class derived from msgspec.Struct", id="wrong Args"),
    ],
)
def test_a_broken_entry_point_is_left_out_and_named(found: EntryPoint, problem: str) -> None:
    registry = discover([found, entry("Good", "Good")])
    assert registry["Good"] is Good
    assert len(registry.problems) == 1
    assert f"plugin {found.name!r}" in registry.problems[0]
    assert problem in registry.problems[0]
    assert set(registry) == {*BUILTIN, "Good"}


def test_a_module_that_raises_or_exits_on_import_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "muster_test_exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "muster_test_raises.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = discover([EntryPoint("A", "muster_test_exits:A", GROUP), EntryPoint("B", "muster_test_raises:B", GROUP)])
    assert ["SystemExit" in registry.problems[0], "ZeroDivisionError" in registry.problems[1]] == [True, True]


def test_of_two_with_one_name_the_same_one_is_left_out_whatever_the_order() -> None:
    both = [entry("Good", "Twin"), entry("Good", "Good")]
    for order in (both, both[::-1]):
        registry = discover(order)
        assert registry["Good"] is Good
        assert len(registry.problems) == 1
        assert "has the name already" in registry.problems[0]


def test_the_same_entry_point_twice_is_no_problem() -> None:
    assert discover([entry("Good", "Good"), entry("Good", "Good")]).problems == ()


def test_the_number_of_plugins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"Plugin{n:04}" for n in range(PLUGINS_MAX + 1)]
    for name in names:
        monkeypatch.setattr(sys.modules[MODULE], name, type(name, (Plugin,), {"name": name}), raising=False)
    registry = discover([entry(name, name) for name in names])
    assert names[-1] not in registry
    assert len(registry.problems) == 1


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        Registry()["NoSuchPlugin"]

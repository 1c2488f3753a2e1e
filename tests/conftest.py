"""Fixtures that every part of the suite may use, and the rules on what runs where.

A test that needs a real Kubernetes carries the marker `kubernetes` and takes the fixture `kubernetes`. Where there are no
binaries it is skipped by name and with the reason, and the run says so at the end; in CI that is a failure instead.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from muster.bench.kubernetes import ControlPlane
from muster.controllers.long_runs import tune_for_long_runs
from tests.clusters import new_cluster
from tests.counts import SOAK

# What is compiled is kept, whatever the environment says: each of the many programs that tests start would compile it all anew.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

# A shell that puts a run in the background has it ignore Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

tune_for_long_runs()  # a third of a simulated run would go into looking for garbage

# A busy machine is no reason to fail: neither a deadline nor "too slow" is a finding here.
_ANY_SPEED = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("default", deadline=None, max_examples=30, suppress_health_check=_ANY_SPEED)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2000, suppress_health_check=_ANY_SPEED)
hypothesis.settings.load_profile("soak" if os.environ.get("MUSTER_SOAK") else "default")


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running kube-apiserver with etcd and kube-controller-manager, shared by the whole run."""
    yield from new_cluster(tmp_path_factory)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker begins one when the other has nothing left to do.

    Within that the order stays: files of one package follow each other and share what its fixtures have started.

    `make soak` tries every property on as many examples as its profile says, so there each of them is a test of that kind.
    """
    if SOAK:
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.soak)
    marks = ("slow", "kubernetes", "soak")
    patient = {item.path for item in items if any(map(item.get_closest_marker, marks))}
    items.sort(key=lambda item: item.path not in patient)


def pytest_collection_finish() -> None:
    """The thousands of tests stay to the end: whoever looks for garbage need not go through them each time."""
    gc.collect()
    gc.freeze()

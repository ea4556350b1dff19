"""Which tests stay together when several processes share them (``pytest -n``). Load as a pytest plugin.

The process that gets the first test of a group gets all of it, in order. Short tests are grouped by file, long ones are
alone, so that all processes end at about the same time. The marker ``xdist_group`` would say the same at each test, but
pytest-xdist 3.8 cannot pass it on with pytest 9.2.
"""

from __future__ import annotations

from typing import Any

import pytest

#: The Spark tests share a session: a JVM, which is slow to start and large.
_SPARK = "tests/integration/spark/"
_BY_FILE = ("tests/protocol/", "tests/unit/", "tests/integration/test_wheel.py")


def group_of(test: str) -> str:
    """The name of the group of a test, which is known by its node id; its own id if it is alone."""
    file = test.partition("::")[0]
    if file.startswith(_SPARK):
        return _SPARK
    return file if file.startswith(_BY_FILE) else test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadgroup``: pytest-xdist's scheduler, with the groups of this module."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    scheduling = LoadGroupScheduling(config, log)
    scheduling._split_scope = group_of
    return scheduling

"""The options of the commands that Spark can execute: ``compact`` and ``verify --deep``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from txnstore.cli.context import parse_pairs

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """Add ``--engine`` and ``--spark-conf`` to a command."""
    engine = click.option(
        "--engine", type=click.Choice(["duckdb", "spark"]), default="duckdb", show_default=True,
        help="spark: as tasks of Spark, many partitions at once.",
    )  # fmt: skip
    conf = click.option(
        "--spark-conf", metavar="KEY=VALUE", multiple=True,
        help="With --engine spark: a setting of Spark, such as spark.master=local[4]. May be repeated.",
    )  # fmt: skip
    return engine(conf(function))


def start_engine(engine: str, spark_conf: tuple[str, ...], *, is_used: bool) -> None:
    """Start a session of Spark with these settings, if one is needed."""
    settings = parse_pairs(spark_conf, "--spark-conf", lambda _, text: text)
    if settings and engine != "spark":
        raise click.UsageError("--spark-conf needs --engine spark")
    if settings and is_used:
        from txnstore.spark.engine import session

        session(settings)

"""``topic``: create, list, show, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, NounGroup, parse_pairs, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Integer, parse_column
from txnstore.phrases import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from txnstore.catalog.description import Topic
    from txnstore.core.view import View


_LIST_COLUMNS = ["topic", "partitions", "records", "segments", "bytes", "typed", "key"]


@click.group(cls=NounGroup)
def topic() -> None:
    """Create, list, show, alter and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--partitions", type=Integer(min=1), help="The number of partitions.  [default: 1]")
@click.option(
    "--column",
    "columns",
    metavar="NAME:TYPE",
    multiple=True,
    help="A typed column, such as id:int64! (! means not null). Without columns, the topic has Kafka records.",
)
@click.option("--key", metavar="COLUMN", help="The column whose value chooses the partition.")
@click.option("--timestamp", metavar="COLUMN", help="The column with the event time.")
@click.option("--config", metavar="NAME=VALUE", multiple=True, help="A setting under Kafka's name; repeatable.")
@click.option("--like", metavar="TOPIC", help="Columns, key, timestamp, settings and partitions are those of TOPIC.")
@click.option("--exist-ok", is_flag=True, help="Accept an existing topic that is equal.")
@shared_options()
@pass_app
def create(
    app: App,
    name: str,
    partitions: int | None,
    columns: tuple[str, ...],
    key: str | None,
    timestamp: str | None,
    config: tuple[str, ...],
    like: str | None,
    exist_ok: bool,
) -> None:
    """Create the topic NAME."""
    if like is not None and (columns or key is not None or timestamp is not None):
        msg = "--like gives the columns, the key and the timestamp: leave --column, --key and --timestamp out"
        raise click.UsageError(msg)
    if like is None and not columns and (key is not None or timestamp is not None):
        msg = (
            f"{'--key' if key is not None else '--timestamp'} names a column: give the columns with --column NAME:TYPE"
        )
        raise click.UsageError(msg)
    settings = _parse_settings(config)
    schema = _schema(columns)
    with app.open() as store:
        if like is not None:
            model = store.topic(like)
            schema, key, timestamp, settings = model.schema, model.key, model.timestamp, {**model.config, **settings}
            partitions = partitions or model.partitions
        created_topic = store.create_topic(
            name, partitions or 1, schema=schema, key=key, timestamp=timestamp, config=settings, exist_ok=exist_ok
        )
    app.out.result(
        f"Topic {created_topic.name!r} has {counted(created_topic.partitions, 'partition')}", **_describe(created_topic)
    )


@topic.command("list")
@shared_options()
@pass_app
def list_topics(app: App) -> None:
    """List all topics."""
    with app.connect() as connection:
        view = connection.view(refresh=False)
    app.out.rows(
        _summary_rows(view), _LIST_COLUMNS, empty="There are no topics. Create one: txnstore topic create NAME"
    )


def _summary_rows(view: View) -> list[dict[str, Any]]:
    """The rows of ``topic list``: each topic with the size of its logs."""
    from txnstore.core.log.visibility import count_records

    rows = []
    for topic in view.sorted_topics():
        partitions = [partition for _, partition in view.partitions_of(topic.name)]
        batches = [batch for partition in partitions for batch in partition.batches]
        rows.append(
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "records": sum(count_records(log, log.log_start, log.high_watermark) for log in partitions),
                "segments": len({batch.segment.key for batch in batches}),
                "bytes": sum(batch.size for batch in batches),
                "typed": topic.schema is not None,
                "key": topic.key,
            }
        )
    return rows


@topic.command()
@click.argument("name")
@shared_options()
@pass_app
def show(app: App, name: str) -> None:
    """Show the columns, the settings and the partitions of the topic NAME."""
    from txnstore.catalog.description import Topic

    with app.connect() as connection:
        view = connection.view(refresh=False)
        topic = Topic(view.find_topic(name))
    description = _describe(topic)
    partitions = _partition_rows(view, name)
    if app.out.as_json:
        app.out.record({**description, "offsets": partitions})
        return
    columns, config = description.pop("columns"), description.pop("config")
    app.out.record(description)
    if columns is not None:
        app.out.rows(columns, ["name", "type", "nullable"])
    app.out.rows([{"setting": name, "value": value} for name, value in config.items()], ["setting", "value"])
    app.out.rows(partitions, list(partitions[0]))


@topic.command()
@click.argument("name")
@click.option("--partitions", type=Integer(min=1), help="The new number of partitions; it can only increase.")
@click.option("--add-column", "columns", metavar="NAME:TYPE", multiple=True, help="A new nullable column; repeatable.")
@click.option("--config", metavar="NAME=VALUE", multiple=True, help="Set a setting; repeatable.")
@click.option("--unset", metavar="NAME", multiple=True, help="Reset a setting to its default; repeatable.")
@shared_options()
@pass_app
def alter(
    app: App,
    name: str,
    partitions: int | None,
    columns: tuple[str, ...],
    config: tuple[str, ...],
    unset: tuple[str, ...],
) -> None:
    """Add partitions or columns to the topic NAME, or change its settings."""
    settings: dict[str, Any] = _parse_settings(config) | dict.fromkeys(unset)
    if partitions is None and not columns and not settings:
        msg = "nothing to change: give --partitions, --add-column, --config or --unset"
        raise click.UsageError(msg)
    with app.open() as store:
        schema = _with_columns(store.topic(name), columns) if columns else None
        altered_topic = store.alter_topic(name, partitions=partitions, schema=schema, config=settings or None)
    app.out.result(f"Topic {altered_topic.name!r} is altered", **_describe(altered_topic))


@topic.command()
@click.argument("name")
@yes_option
@shared_options()
@pass_app
def delete(app: App, name: str, yes: bool) -> None:
    """Delete the topic NAME and all of its records. Shows what it has, and asks."""
    with app.open() as store:
        store.topic(name)
        if must_ask(f"delete topic {name!r}", yes=yes):
            view = store.snapshot().view
            app.out.plan([row for row in _summary_rows(view) if row["topic"] == name], _LIST_COLUMNS)
            groups = sorted(key for key, group in view.groups.items() if any(tp.topic == name for tp in group.offsets))
            if groups:
                app.out.note(f"Groups with committed offsets in it: {', '.join(groups)}")
            ask(f"Delete topic {name!r} with all of its records? This cannot be undone.")
        store.delete_topic(name)
    app.out.result(f"Topic {name!r} is deleted; a later vacuum removes its objects", topic=name)


def _parse_settings(config: tuple[str, ...]) -> dict[str, Any]:
    return parse_pairs(config, "--config", lambda _name, text: text.strip())


def _schema(columns: tuple[str, ...]) -> pa.Schema | None:
    if not columns:
        return None
    import pyarrow as pa

    return pa.schema([parse_column(text) for text in columns])


def _with_columns(topic: Topic, columns: tuple[str, ...]) -> pa.Schema:
    schema = topic.schema
    if schema is None:
        msg = f"topic {topic.name!r} was created without columns (Kafka records), so none can be added"
        raise click.UsageError(msg)
    for text in columns:
        schema = schema.append(parse_column(text))
    return schema


def _describe(topic: Topic) -> dict[str, Any]:
    """Return a topic as JSON shows it, with the settings that are in effect."""
    from txnstore.catalog.settings import TopicConfig

    columns = None
    if (fields := topic.schema) is not None:
        columns = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in fields]
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "key": topic.key,
        "timestamp": topic.timestamp,
        "created_at": instant(topic.created_at),
        "columns": columns,
        "config": TopicConfig.from_stored(topic.config).effective(),
    }


def _partition_rows(view: View, name: str) -> list[dict[str, Any]]:
    """Return a row for each partition of a topic.

    `records` is an upper bound if the log starts inside a merged batch with gaps.
    """
    from txnstore.core.log.visibility import count_records

    return [
        {
            "partition": tp.partition,
            "log_start": partition.log_start,
            "last_stable": partition.last_stable_offset,
            "high_watermark": partition.high_watermark,
            "records": count_records(partition, partition.log_start, partition.high_watermark),
            "segments": len({batch.segment.key for batch in partition.batches}),
            "open_transactions": len(partition.open_txns),
        }
        for tp, partition in view.partitions_of(name)
    ]

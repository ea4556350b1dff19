"""The exported metrics: the values of the state of a store, and the text format of Prometheus."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.shell import runtime
from txnstore import Store, TopicPartition
from txnstore.compactor.maintain.metrics import FAMILIES as MAINTENANCE
from txnstore.errors import InvalidConfigError
from txnstore.gateway.metrics import FAMILIES as GATEWAY
from txnstore.gateway.metrics import WORKER_FAMILIES
from txnstore.metrics import GroupLag, StoreStatus, TransactionStatus
from txnstore.monitoring.catalogue import DURATIONS, PROCESS, STATUS
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import Fault, FaultStore, ManualClock, on

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring.md"
#: A group whose name needs every escape of the format.
GROUP = 'a "b" \\ c'
Labels = frozenset[tuple[str, str]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def exported_names() -> set[str]:
    """The names of all metrics as Prometheus has them; of a histogram without ``_bucket``, ``_sum``, ``_count``."""
    names = {f"txnstore_{metric.name}_total" for metric in PROCESS}
    return (
        names
        | {f"txnstore_{metric.name}" for metric in STATUS}
        | {f"txnstore_{item.name}_seconds" for item in DURATIONS}
    )


def families() -> dict[str, tuple[str, str | None]]:
    """The kinds and labels of the metrics of gateways, and of what maintains a store, by name."""
    found = {f"txnstore_{each.name}{'_total' * (each.kind == 'counter')}": (each.kind, each.label) for each in GATEWAY}
    found |= {f"txnstore_{name}{'_total' * (kind == 'counter')}": (kind, None) for name, _, kind in WORKER_FAMILIES}
    return found | {f"txnstore_{name}_total": (kind, label) for name, kind, _, label in MAINTENANCE}


def labels_of_metrics() -> dict[str, set[str]]:
    """The labels that the samples of each metric have."""
    labels = {f"txnstore_{metric.name}_total": {"store", *metric.labels} for metric in PROCESS}
    labels |= {f"txnstore_{metric.name}": {"store", *metric.labels} for metric in STATUS}
    labels |= {name: {"store", *([label] if label else [])} for name, (_, label) in families().items()}
    return labels | {
        f"txnstore_{item.name}_seconds": {"store", "le", *([item.label] if item.label else [])} for item in DURATIONS
    }


def busy_store(clock: ManualClock, chains: int = 1) -> Store:
    """A store with a committed record, an open transaction of 7 s before two more, and a group that read one."""
    store = create_on(MemoryStore(), chains, runtime=runtime(clock))
    store.create_topic("t", partitions=2)
    plain, open_one = store.producer(), store.producer("open", transaction_timeout=60)
    plain.send("t", b"1", partition=0).result()
    open_one.begin_transaction()
    open_one.send("t", b"2", partition=0)
    open_one.flush()
    for value in (b"3", b"4"):
        plain.send("t", value, partition=0).result()
    with store.consumer(group=GROUP) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.commit({TopicPartition("t", 0): 0})
    clock.advance(7_000)
    return store


def status_of(store: Store) -> StoreStatus:
    status = store.metrics(status=True).status
    assert status is not None
    return status


@pytest.mark.parametrize("chains", [1, 3])
def test_status_shows_what_holds_readers_back(clock: ManualClock, chains: int) -> None:
    """ADM-08."""
    status = status_of(busy_store(clock, chains))
    first, second = status.partitions
    assert (first.topic, first.partition, second.partition) == ("t", 0, 1)
    assert (first.last_stable, first.high_watermark, first.lso_distance, first.blocked) == (1, 4, 3, 2)
    assert (first.segments, second.segments, second.bytes) == (4, 0, 0)
    (txn,) = status.transactions
    assert txn.age == pytest.approx(7, abs=0.1)  # Entries of a clock that stands still are 1 ms apart.
    assert txn == TransactionStatus("open", txn.producer_id, "ONGOING", prepared=False, age=txn.age, timeout=60.0)
    assert status.lags == (GroupLag(GROUP, "t", 0, 0, 1),)
    assert [(group.group, group.state, group.members) for group in status.groups] == [(GROUP, "Empty", 0)]
    assert [row.chain for row in status.chains] == list(range(chains))


@pytest.mark.parametrize("chains", [1, 3])
def test_status_costs_two_requests_for_each_chain_and_one(clock: ManualClock, chains: int) -> None:
    objects = CountingStore(MemoryStore())
    with create_on(objects, chains, runtime=runtime(clock)) as store:
        store.create_topic("t")
        before = objects.snapshot()
        store.metrics()
        assert (objects.snapshot() - before).requests == 0
        store.metrics(status=True)
        cost = objects.snapshot() - before
        assert (cost.requests, cost.get) == (2 * chains + 1, 2 * chains + 1)


def test_checkpoint_failures_show_as_entries_without_a_checkpoint(clock: ManualClock) -> None:
    faults = FaultStore(MemoryStore())
    with create_on(faults, runtime=runtime(clock)) as store:
        for number in range(5):
            store.create_topic(f"t{number}")
        store.checkpoint()
        store.create_topic("more")
        (chain,) = status_of(store).chains
        assert (chain.entries, chain.checkpoint) == (6, 5)
        faults.plan = on(Fault.ERROR_BEFORE, "get", key_contains="latest", times=None)
        with pytest.raises(Exception, match="latest/0000"):
            store.metrics(status=True)


# --- the text format --------------------------------------------------------------------------------------------------

_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"')


def parsed(text: str) -> tuple[dict[str, str], dict[str, dict[Labels, float]]]:
    """The types by metric, and the samples by name and labels; fails where the text breaks a rule of the format."""
    types: dict[str, str] = {}
    helps: set[str] = set()
    samples: dict[str, dict[Labels, float]] = defaultdict(dict)
    current = ""
    assert text.endswith("\n")
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            assert current not in helps, "one uninterrupted group for each metric"
            helps.add(current)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current
            types[name] = kind
        else:
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            name, labels, value = sample.groups()
            base = re.sub("_(bucket|sum|count)$", "", name) if types[current] == "histogram" else name
            assert base == current
            key = frozenset((label, _unescaped(text)) for label, text in _LABEL.findall(labels))
            assert key not in samples[name], "a series occurs once"
            samples[name][key] = float(value)
    assert set(types) == helps
    return types, samples


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def test_text_follows_the_format_and_has_all_metrics(clock: ManualClock) -> None:
    store = busy_store(clock)
    with store.consumer(["t"]) as consumer:
        consumer.poll()
    types, samples = parsed(store.prometheus())
    counters = {f"txnstore_{metric.name}_total" for metric in PROCESS}
    gauges = {f"txnstore_{metric.name}" for metric in STATUS}
    gauges -= {name for name in gauges if name.startswith(("txnstore_table_", "txnstore_retention_"))}  # Of others.
    histograms = {f"txnstore_{durations.name}_seconds" for durations in DURATIONS}
    assert {name for name, kind in types.items() if kind == "counter"} == counters
    assert {name for name, kind in types.items() if kind == "gauge"} == gauges
    assert {name for name, kind in types.items() if kind == "histogram"} == histograms
    where = ("store", store.url)
    lag = frozenset({where, ("group", GROUP), ("topic", "t"), ("partition", "0")})
    assert samples["txnstore_group_lag"] == {lag: 1}
    assert samples["txnstore_commits_total"] == {frozenset({where}): store.metrics().commits}


def test_buckets_are_cumulative_and_end_with_infinity(clock: ManualClock) -> None:
    _, samples = parsed(busy_store(clock).prometheus(status=False))
    for durations in DURATIONS:
        name = f"txnstore_{durations.name}_seconds"
        for labels, count in samples[f"{name}_count"].items():
            series = {
                float(dict(key)["le"]): value
                for key, value in samples[f"{name}_bucket"].items()
                if labels <= key and len(key) == len(labels) + 1
            }
            bounds = sorted(series)
            assert bounds[-1] == float("inf")
            assert [series[bound] for bound in bounds] == sorted(series.values())
            assert series[bounds[-1]] == count > 0
            assert labels in samples[f"{name}_sum"]


def test_parts_of_the_text(clock: ManualClock) -> None:
    store = busy_store(clock)
    assert "txnstore_commits_total" not in store.prometheus(process=False)
    assert "txnstore_group_lag" not in store.prometheus(status=False)
    assert "bucket" not in store.prometheus(process=False)


def test_instrument_says_what_to_install(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(InvalidConfigError, match=r"pip install 'txnstore\[otel\]'"):
        busy_store(clock).instrument()


def test_the_page_on_monitoring_names_all_metrics() -> None:
    page = MONITORING.read_text(encoding="utf-8")
    names = exported_names()
    documented = set(re.findall(r"^\| `(txnstore_\w+)", page, re.MULTILINE))
    assert documented == names | set(families())


def test_alerts_use_metrics_and_labels_that_exist() -> None:
    """And there are some of each kind of metric."""
    labels = labels_of_metrics()
    text = MONITORING.read_text(encoding="utf-8").split("```yaml")[1].split("```")[0]
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    used = set[str]()
    for rule in rules:
        query, shown = rule["expr"], set(re.findall(r"{{ \$labels\.(\w+) }}", rule["annotations"]["summary"]))
        assert [query.count(bracket) for bracket in "([{"] == [query.count(bracket) for bracket in ")]}"]
        have = set[str]()
        for part in query.split(" or "):
            names = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"\btxnstore_\w+", part)}
            assert names <= labels.keys(), rule["alert"]
            used |= names
            exist = set.intersection(*(labels[name] for name in names)) if names else {"file"}
            grouped = {name.strip() for found in re.findall(r"by \(([^)]*)\)", part) for name in found.split(",")}
            assert grouped | set(re.findall(r"(\w+)[!=]~?\"", part)) <= exist, rule["alert"]
            have |= grouped or exist
        assert shown <= have, rule["alert"]
    for prefix in ("gateway", "table", "maintenance", "partition", "retention", "last_maintenance"):
        assert any(name.startswith(f"txnstore_{prefix}") for name in used), prefix


# The dashboard --------------------------------------------------------------------------------------------------------

DASHBOARD = json.loads((MONITORING.parent / "monitoring" / "grafana.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_metrics_that_exist(panel: dict[str, Any]) -> None:
    """Each query names metrics of ours, and selects, groups and shows by labels that they have."""
    labels = labels_of_metrics()
    assert panel["targets"]
    for target in panel["targets"]:
        query = target["expr"]
        assert [query.count(bracket) for bracket in "([{"] == [query.count(bracket) for bracket in ")]}"]
        used = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"\btxnstore_\w+", query)}
        assert used
        assert used <= labels.keys()
        exist = set.intersection(*(labels[name] for name in used))
        grouped = {name.strip() for names in re.findall(r"by \(([^)]*)\)", query) for name in names.split(",")}
        selected = set(re.findall(r"(\w+)=~?\"", query))
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert grouped | selected | shown <= exist
        assert not grouped or shown <= grouped
        assert query.count('store=~"$store"') == len(re.findall(r"\btxnstore_\w+", query))


def test_the_dashboard_can_be_loaded() -> None:
    """What Grafana needs: panels with ids and places of their own, a data source and stores that the reader chooses."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    source, stores = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], stores["name"]) == ("datasource", "datasource", "store")
    assert re.search(r"label_values\((\w+), store\)", stores["query"]["query"])[1] in exported_names()  # type: ignore[index]
    assert {json.dumps(panel["datasource"]) for panel in PANELS} == {'{"type": "prometheus", "uid": "${datasource}"}'}
    assert "monitoring/grafana.json" in MONITORING.read_text(encoding="utf-8")

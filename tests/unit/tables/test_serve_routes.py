"""The responses of the catalog, from cuts that are written down: every route, every error."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.cuts import LOCATION, WrittenCuts, ask, document, refusal
from txnstore.catalog.iceberg.cut import Moment, PublishedTable
from txnstore.errors import CorruptionError, StorageError, StorageRefusedError
from txnstore.tables.serve.messages import Request, Response
from txnstore.tables.serve.routes import Newest, Router

TABLES = "/v1/{}/namespaces/tables/tables"


@pytest.fixture
def cuts() -> WrittenCuts:
    """Three cuts: of one table, of three, and of two of them, since the third one was dropped."""
    cuts = WrittenCuts()
    cuts.publish({"orders": 1})
    cuts.publish({"orders": 2, "eu.payments": 1, "audit": 1})
    cuts.publish({"orders": 2, "eu.payments": 2, "audit": 2}, dropped=("audit",))
    return cuts


@pytest.fixture
def router(cuts: WrittenCuts) -> Router:
    return Router(cuts, LOCATION)


def prefix(router: Router, warehouse: str | None) -> str:
    """The prefix of a new session."""
    query = "" if warehouse is None else f"?warehouse={quote(warehouse)}"
    name: str = document(ask(router, f"/v1/config{query}"))["overrides"]["prefix"]
    return name


def loaded(router: Router, prefix: str, table: str) -> int:
    """The version of a table that a load returns."""
    version: int = document(ask(router, f"{TABLES.format(prefix)}/{table}"))["metadata"]["version"]
    return version


def names(router: Router, prefix: str) -> list[str]:
    return [each["name"] for each in document(ask(router, TABLES.format(prefix)))["identifiers"]]


# Sessions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warehouse", "expected"),
    [(None, "live"), ("", "live"), ("live", "live"), ("pinned", "cut-3"), ("1", "cut-1"), ("3", "cut-3")],
)
def test_a_warehouse_is_a_prefix(router: Router, warehouse: str | None, expected: str) -> None:
    assert prefix(router, warehouse) == expected


def test_the_configuration_names_what_engines_may_send(router: Router) -> None:
    """What is not named engines do not send, such as reports of metrics."""
    config = document(ask(router, "/v1/config"))
    assert set(config) == {"defaults", "overrides", "endpoints"}
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in config["endpoints"]
    assert {each.split(" ")[0] for each in config["endpoints"]} == {"GET", "HEAD"}


def test_a_pinned_session_stays_at_its_cut_while_others_appear(router: Router, cuts: WrittenCuts) -> None:
    pinned, numbered, live = (prefix(router, name) for name in ("pinned", "2", "live"))
    cuts.publish({"orders": 3, "eu.payments": 3})
    assert [loaded(router, each, "orders") for each in (numbered, pinned, live)] == [2, 2, 3]
    assert [loaded(router, each, "eu.payments") for each in (numbered, pinned, live)] == [1, 2, 3]
    assert prefix(router, "pinned") == "cut-4"


def test_another_server_knows_the_prefixes_of_this_one(router: Router, cuts: WrittenCuts) -> None:
    pinned = prefix(router, "pinned")
    cuts.publish({"orders": 3})
    assert loaded(Router(cuts, LOCATION), pinned, "orders") == 2


@pytest.mark.parametrize("name", ["fresh", "cut-1", "-1", "0", "01", "1.5", "٣", "1" * 20, "Pinned", "pinned ", "\n"])
def test_another_warehouse_is_refused_with_what_is_allowed(router: Router, name: str) -> None:
    status, kind, message = refusal(ask(router, f"/v1/config?warehouse={quote(name)}"))
    assert (status, kind) == (400, "BadRequestException")
    assert all(word in message for word in ("`pinned`", "`live`", "number of a cut"))


@pytest.mark.parametrize(
    "target", ["/v1/config?warehouse=9", "/v1/cut-9/namespaces", f"{TABLES.format('cut-9')}/orders"]
)
def test_a_cut_that_does_not_exist_needs_a_new_session(router: Router, target: str) -> None:
    status, _, message = refusal(ask(router, target))
    assert (status, "cut 9" in message, "open a new session" in message) == (404, True, True)


def test_a_cut_whose_metadata_was_deleted_needs_a_new_session(
    router: Router, cuts: WrittenCuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not look for the newest cut, which may publish one."""
    monkeypatch.delattr(WrittenCuts, "newest")
    del cuts.objects[cuts.cuts[1].tables["orders"].metadata]
    status, _, message = refusal(ask(router, f"{TABLES.format('cut-1')}/orders"))
    assert (status, "open a new session" in message) == (404, True)


@pytest.mark.parametrize("name", ["live", "cut-3"])
def test_missing_metadata_of_the_newest_cut_is_damage(router: Router, cuts: WrittenCuts, name: str) -> None:
    key = cuts.cuts[3].tables["orders"].metadata
    del cuts.objects[key]
    status, kind, message = refusal(ask(router, f"{TABLES.format(name)}/orders"))
    assert (status, kind) == (500, "ServiceFailureException")
    assert f"{key} is missing" in message
    assert "table sync" in message


@pytest.mark.parametrize("name", ["cut-", "cut-01", "cut-x", "17", "LIVE", "cut-1%20", "", "1" * 30, "pinned", "cut-٣"])
def test_a_prefix_that_no_session_has_is_refused(router: Router, name: str) -> None:
    status, kind, message = refusal(ask(router, f"/v1/{quote(name, safe='%')}/namespaces"))
    assert (status, kind, "/v1/config" in message) == (400, "BadRequestException", True)


def test_before_the_first_cut_there_are_no_tables() -> None:
    """A session that begins then stays empty."""
    cuts = WrittenCuts()
    router = Router(cuts, LOCATION)
    pinned = prefix(router, "pinned")
    assert (pinned, names(router, pinned), names(router, "live")) == ("cut-0", [], [])
    status, kind, message = refusal(ask(router, f"{TABLES.format('live')}/orders"))
    assert (status, kind, "txnstore table sync" in message) == (404, "NoSuchTableException", True)
    cuts.publish({"orders": 1})
    assert (names(router, pinned), names(router, "live")) == ([], ["orders"])


def test_tables_that_were_published_again_from_the_first_cut_on_are_found(router: Router, cuts: WrittenCuts) -> None:
    """A server that remembers a cut of those that were deleted looks again."""
    cuts.remembered = cuts.cuts[3]
    cuts.cuts.clear()
    cuts.objects.clear()
    cuts.publish({"orders": 1})
    assert loaded(router, "live", "orders") == 1


# Namespaces and tables ------------------------------------------------------------------------------------------------


def test_all_tables_are_in_one_namespace(router: Router) -> None:
    assert document(ask(router, "/v1/live/namespaces"))["namespaces"] == [["tables"]]
    assert document(ask(router, "/v1/live/namespaces?parent="))["namespaces"] == [["tables"]]
    assert document(ask(router, "/v1/live/namespaces?parent=tables&pageToken="))["namespaces"] == []
    assert refusal(ask(router, "/v1/live/namespaces?parent=other"))[:2] == (404, "NoSuchNamespaceException")


def test_the_namespace_says_which_cut_it_shows(router: Router) -> None:
    namespace = document(ask(router, "/v1/cut-2/namespaces/tables"))
    properties = {"txnstore.cut": "2", "txnstore.heads": "20,3", "txnstore.timestamp-ms": "2"}
    assert namespace == {"namespace": ["tables"], "properties": properties}


@pytest.mark.parametrize("path", ["", "/tables", "/tables/orders"])
@pytest.mark.parametrize("namespace", ["default", "tables%1Feu", "Tables", "", "tables%2F"])
def test_there_is_no_other_namespace(router: Router, namespace: str, path: str) -> None:
    answer = ask(router, f"/v1/live/namespaces/{namespace}{path}")
    assert refusal(answer)[:2] == (404, "NoSuchNamespaceException")


def test_the_tables_of_a_cut_are_listed_without_dropped_ones(router: Router) -> None:
    assert [names(router, each) for each in ("cut-1", "cut-2", "live")] == [
        ["orders"],
        ["audit", "eu.payments", "orders"],
        ["eu.payments", "orders"],
    ]
    listed = document(ask(router, TABLES.format("cut-1")))
    assert listed == {"identifiers": [{"namespace": ["tables"], "name": "orders"}]}


def test_a_load_has_the_published_bytes(router: Router, cuts: WrittenCuts) -> None:
    answer = ask(router, f"{TABLES.format('live')}/orders")
    table = cuts.cuts[3].tables["orders"]
    assert cuts.objects[table.metadata] in answer.body
    assert document(answer) == {
        "metadata-location": f"file:///lake/{table.metadata}",
        "metadata": {"table": "orders", "version": 2},
        "config": {},
    }


@pytest.mark.parametrize("name", ["eu.payments", "eu%2Epayments", "%65u.payments"])
def test_names_with_dots_are_names(router: Router, name: str) -> None:
    assert loaded(router, "live", name) == 2
    assert ask(router, f"{TABLES.format('live')}/{name}", "HEAD").status == 204


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", ["audit", "Orders", "orders ", "", "..", "orders%2Fmetadata", "orders%00"])
def test_other_tables_do_not_exist(router: Router, name: str, method: str) -> None:
    answer = ask(router, f"{TABLES.format('live')}/{quote(name, safe='%')}", method)
    status, kind, message = refusal(answer)
    assert (status, kind, "at cut 3" in message) == (404, "NoSuchTableException", True)


@pytest.mark.parametrize("path", ["/namespaces/tables", "/namespaces/tables/tables/orders"])
def test_head_says_whether_something_exists(router: Router, path: str) -> None:
    assert ask(router, f"/v1/cut-1{path}", "HEAD") == Response(204)


@pytest.mark.parametrize("target", ["/v1/config", "/v1/live/namespaces", TABLES.format("live")])
def test_head_of_a_list_is_that_of_its_get(router: Router, target: str) -> None:
    assert ask(router, target, "HEAD") == ask(router, target)


def test_a_load_of_what_the_engine_has_transfers_nothing(router: Router, cuts: WrittenCuts) -> None:
    target = f"{TABLES.format('live')}/orders"
    (tag,) = [value for name, value in ask(router, target).headers if name == "ETag"]
    for given_tags in (tag, f"W/{tag}", f'"other", {tag}'):
        assert ask(router, target, if_none_match=given_tags) == Response(304, headers=(("ETag", tag),))
    assert ask(router, target, if_none_match='"other"').status == 200
    cuts.publish({"orders": 3})
    assert ask(router, target, if_none_match=tag).status == 200


# Refusals -------------------------------------------------------------------------------------------------------------

WRITES = [
    ("POST", "/v1/{}/namespaces"),
    ("DELETE", "/v1/{}/namespaces/tables"),
    ("POST", "/v1/{}/namespaces/tables/properties"),
    ("POST", "/v1/{}/namespaces/tables/tables"),
    ("POST", "/v1/{}/namespaces/tables/tables/orders"),
    ("DELETE", "/v1/{}/namespaces/tables/tables/orders?purgeRequested=true"),
    ("PUT", "/v1/{}/namespaces/tables/tables/orders"),
    ("PATCH", "/v1/{}/namespaces/tables/tables/orders"),
    ("POST", "/v1/{}/namespaces/tables/register"),
    ("POST", "/v1/{}/tables/rename"),
    ("POST", "/v1/{}/transactions/commit"),
    ("POST", "/v1/oauth/tokens"),
    ("POST", "/v1/config"),
    ("POST", "/"),
    ("DELETE", "/v1/{}/namespaces/tables/tables/orders/metrics"),
]


@pytest.mark.parametrize(("method", "target"), WRITES)
@pytest.mark.parametrize("prefix", ["live", "cut-1"])
def test_nothing_can_be_written(router: Router, method: str, target: str, prefix: str) -> None:
    status, kind, message = refusal(ask(router, target.format(prefix), method))
    assert (status, kind, "read-only" in message) == (403, "ForbiddenException", True)


def test_reports_of_metrics_are_dropped(router: Router) -> None:
    assert ask(router, f"{TABLES.format('live')}/orders/metrics", "POST") == Response(204)


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "BREW", "", "get"])
def test_an_unknown_method_is_refused(router: Router, method: str) -> None:
    assert refusal(ask(router, "/v1/config", method))[:2] == (501, "UnsupportedOperationException")


@pytest.mark.parametrize(
    "target",
    ["/", "/health", "/v1", "/v1/", "/v2/config", "/v1/live", "/v1/config/", "/v1/live/namespaces/tables/views",
     "/v1/live/namespaces/tables/views/v", "/v1/live/namespaces/tables/tables/orders/credentials",
     "/v1/live/namespaces/tables/tables/orders/metrics", "/V1/config", "//v1/config"],
)  # fmt: skip
def test_an_unknown_route_is_refused(router: Router, target: str) -> None:
    assert refusal(ask(router, target))[:2] == (406, "UnsupportedOperationException")


@pytest.mark.parametrize(
    "target",
    ["", "v1/config", "*", "localhost:8181", "/v1/%ff/namespaces", "/v1/config?warehouse=%ff",
     "/v1/config?warehouse=live&warehouse=pinned", "/v1/config?" + "&".join(f"a{n}=" for n in range(30))],
)  # fmt: skip
def test_what_is_no_path_is_refused(router: Router, target: str) -> None:
    assert refusal(ask(router, target))[:2] == (400, "BadRequestException")


def test_a_target_may_name_the_server(router: Router) -> None:
    assert ask(router, "http://127.0.0.1:8181/v1/config") == ask(router, "/v1/config")


@given(
    st.text(st.characters(exclude_categories=["Cs"])) | st.text("/v1livetabsnmcung-0123%?&=.#"),
    st.sampled_from(["GET", "HEAD", "POST"]),
)
def test_any_target_has_a_response(target: str, method: str) -> None:
    cuts = WrittenCuts()
    cuts.publish({"orders": 1})
    answer = ask(Router(cuts, LOCATION), f"/{target}", method)
    assert answer.status in {200, 204, 400, 403, 404, 406}
    assert answer.status == 204 or json.loads(answer.body)


# Tokens ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "BREW"])
@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong-token-0123", "Basic good-token-0123", "good-token-0123",
               "Bearer good-token-0123x", "Bearer good-token-012", "Bearer gööd-token-0123", "Bearer \udcff"],
)  # fmt: skip
def test_without_a_token_nothing_is_answered(cuts: WrittenCuts, method: str, header: str) -> None:
    router = Router(cuts, LOCATION, ["good-token-0123", "next-token-0123"])
    answer = ask(router, "/v1/config", method, authorization=header)
    assert refusal(answer)[:2] == (401, "NotAuthorizedException")
    assert ("WWW-Authenticate", "Bearer") in answer.headers
    assert b"good-token" not in answer.body


@pytest.mark.parametrize("header", ["Bearer good-token-0123", "bearer next-token-0123", "BEARER  good-token-0123 "])
def test_each_of_the_tokens_is_one(cuts: WrittenCuts, header: str) -> None:
    router = Router(cuts, LOCATION, ["good-token-0123", "next-token-0123"])
    assert ask(router, "/v1/config", authorization=header).status == 200


# Errors of the store --------------------------------------------------------------------------------------------------


class FailingCuts(WrittenCuts):
    """Cuts in a storage that fails each request."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def newest(self, *, uncached: bool = False) -> Newest:
        raise self._error

    def metadata(self, table: PublishedTable) -> bytes | None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (StorageError("no answer in 5 s"), 503, "ServiceUnavailableException"),
        (StorageRefusedError("access denied"), 500, "ServiceFailureException"),
        (CorruptionError("tables/cuts/1.json is damaged"), 500, "ServiceFailureException"),
    ],
)
def test_an_error_of_the_store_is_a_response(
    error: Exception, status: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Engines repeat a request that was answered with 503."""
    cuts = FailingCuts(error)
    cuts.publish({"orders": 1})
    for target in ("/v1/config?warehouse=pinned", f"{TABLES.format('cut-1')}/orders"):
        with caplog.at_level(logging.WARNING):
            answer = Router(cuts, LOCATION).answer(Request("GET", target))
        assert refusal(answer) == (status, kind, str(error))
    assert [record.getMessage() for record in caplog.records] == ["a request cannot be answered"] * 2


def test_a_session_of_a_cut_sees_no_table_of_an_earlier_moment(router: Router, cuts: WrittenCuts) -> None:
    """It would see a transaction in some tables only; a live session sees each table as it is."""
    moment = Moment(heads=[20, 3], timestamp=2)
    cut = cuts.cuts[3]
    outdated = replace(cut.tables["orders"], moment=moment)
    cuts.cuts[3] = replace(cut, tables={**cut.tables, "orders": outdated})
    assert names(router, "cut-3") == ["eu.payments"]
    status, _, message = refusal(ask(router, f"{TABLES.format('cut-3')}/orders"))
    assert (status, "could not be published with it" in message) == (404, True)
    assert ask(router, f"{TABLES.format('cut-3')}/other").status == 404
    assert names(router, "live") == ["eu.payments", "orders"]
    assert loaded(router, "live", "orders") == 2


def test_answers_from_a_cut_that_is_too_old_say_so(router: Router, cuts: WrittenCuts) -> None:
    cuts.stale = "StorageError"
    newest = ["/v1/config?warehouse=pinned", "/v1/live/namespaces", "/v1/live/namespaces/tables", TABLES.format("live")]
    header = ("X-Txnstore-Stale", "StorageError")
    for target in (*newest, f"{TABLES.format('live')}/orders"):
        assert header in ask(router, target).headers, target
        assert header not in ask(router, target.replace("live", "cut-1").replace("pinned", "1")).headers, target

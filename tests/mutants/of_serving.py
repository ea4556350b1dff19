"""Mutants of the catalog that serves published tables."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.tables.serve import routes
from txnstore.tables.serve.cuts import Freshness, StoredCuts
from txnstore.tables.serve.routes import Router
from txnstore.tables.serve.server import CatalogServer, _Handler, _Incoming

_ROUTES = "unit/tables/test_serve_routes.py::"
_SESSIONS = "unit/tables/test_serve_sessions.py::"
_FRESHNESS = "unit/tables/test_serve_freshness.py::"
_INCOMING = "unit/tables/test_serve_incoming.py::"
_SERVER = "integration/tables/test_serve.py::"

SERVING = (
    Mutant(
        "a pinned session sees the newest cut at each load",
        Router._at,
        "return self._numbered(int(match[1]))",
        "return _shown_newest(self._cuts.newest())",
        test=_SESSIONS + "test_pinned_sessions_never_see_the_topics_of_a_transaction_apart",
    ),
    Mutant(
        "a session of live stays at its first cut",
        StoredCuts.newest,
        "cut = self._published.newest($known)",
        "cut = $known or self._published.newest($known)",
        test=_SESSIONS + "test_a_load_that_finds_an_old_cut_publishes_first",
    ),
    Mutant(
        "dropped tables are served",
        routes._shown,
        "if not $table.dropped",
        "",
        test=_ROUTES + "test_the_tables_of_a_cut_are_listed_without_dropped_ones",
    ),
    Mutant(
        "a catalog remembers cuts of tables that were deleted and published again",
        Router._table,
        "anew=True",
        "anew=False",
        test=_SESSIONS + "test_tables_that_are_deleted_and_published_again_are_served_by_the_same_server",
    ),
    Mutant(
        "any token is one",
        Router._check_token,
        "or not any($matches)",
        "",
        test=_ROUTES + "test_without_a_token_nothing_is_answered",
    ),
    Mutant(
        "a publication is as fresh as its end",
        Freshness.ensure,
        "<= $asked - self._fresh_ms",
        "<= $asked - self._fresh_ms - 100",
        test=_FRESHNESS + "test_a_publication_lasts_from_its_beginning_on",
    ),
    Mutant(
        "each who waits for a publication begins another one",
        Freshness.ensure,
        "if self._began is None or self._began <= $asked - self._fresh_ms:",
        "if True:",
        test=_FRESHNESS + "test_those_who_come_meanwhile_wait_for_the_same_publication",
    ),
    Mutant(
        "each byte of a request gives it more time",
        _Incoming.readinto,
        "if $size and self._then is not None:",
        "self._then = self._then or 20.0\n    if $size:",
        test=_INCOMING + "test_each_byte_of_a_request_comes_before_the_same_deadline",
    ),
    Mutant(
        "a refused request leaves bytes that reset its connection",
        _Handler._refused,
        "self.close_connection = self._unread = True",
        "self.close_connection = True",
        test=_SERVER + "test_a_client_can_send_all_before_it_reads_the_refusal",
    ),
    Mutant(
        "any number of connections is served",
        CatalogServer._admitted,
        "if len(self._open) >= self.limits.connections:",
        "if False:",
        test=_SERVER + "test_too_many_connections_are_refused_until_others_have_ended",
    ),
)

"""The loop of a poll: hand out what is there, look at the chain when nothing is, wait a little, look again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txnstore.consumer.fetcher import Taken, drain
from txnstore.consumer.subscription import Positions
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.view import View
from txnstore.errors import CorruptionError
from txnstore.read.reader import is_missing
from txnstore.read.store import Reads

#: The first pause between two looks at an idle chain, in seconds; it doubles up to the longest one.
_FIRST_PAUSE = 0.01
#: What one poll hands out at most, beyond the first piece.
_MAX_POLL_BYTES = 64 << 20


class Poller:
    """Gets rows for positions. ``longest_pause``: between two looks at an idle chain, in seconds.

    ``follow``: brings the positions to what a group says in a state, and returns the state after that.
    """

    def __init__(
        self, store: Reads, positions: Positions, longest_pause: float, follow: Callable[[View], View] | None = None
    ) -> None:
        self._store = store
        self._positions = positions
        self._follow = follow if follow is not None else _stay
        self._longest_pause = longest_pause
        self._pause = min(_FIRST_PAUSE, longest_pause)
        self._turns: list[TopicPartition] = []

    def poll(self, timeout: float, rows: int, *, one_schema: bool = False) -> list[Taken]:
        """Up to so many rows; none if there are none within ``timeout`` seconds.

        Rows that are known come without a look at the chain, unless a position has to be found that only its head can
        tell. ``timeout`` 0: one look at most.
        """
        runtime = self._store.runtime
        deadline, waited = runtime.clock() + timeout * 1000, 0.0
        state, fresh, planned_again = self._follow(self._store.state(refresh=False)), False, False
        if self._positions.needs_head(state):
            state, fresh = self._look(state), True
        while True:
            state = self.caught_up(state)
            unstable = self._positions.update(state)
            try:
                taken = self._take(rows, one_schema=one_schema)
            except CorruptionError as error:
                # A compaction has replaced, and a vacuum removed, a segment of an old plan: the head names another.
                if planned_again or not is_missing(error):
                    raise
                state, fresh, planned_again = self._look(state), True, True
                continue
            if taken:
                self._pause = min(_FIRST_PAUSE, self._longest_pause)
                return taken
            if fresh and self._store.unblock(self._positions.blocked_by(state)):
                state = self._look(state)  # What was left open by others is ended now.
                continue
            if fresh:
                # The clock may be set back while this waits, so what was slept counts as well.
                left = min((deadline - runtime.clock()) / 1000, timeout - waited)
                if left <= 0:
                    if unstable is not None:
                        raise unstable
                    return []
                pause = min(self._pause, left)
                runtime.sleep(pause)
                waited += pause
                self._pause = min(self._pause * 2, self._longest_pause)
            state, fresh = self._look(state), True

    def caught_up(self, state: View) -> View:
        """A state that knows the logs as far as the group's offsets, unless one is past the end indeed.

        Else a consumer that takes over would find that offset outside the log, and begin where the policy says.
        """
        before: dict[TopicPartition, int] = {}
        while (outrun := self._positions.outrun(state)) and outrun != before:
            before = outrun
            state = self._store.state(refresh={chain_of_partition(tp, state.chains) for tp in outrun})
        return state

    def _look(self, state: View) -> View:
        """The heads of the chains that matter to these positions: one GET each if there is nothing new."""
        return self._follow(self._store.state(refresh=self._positions.chains(state)))

    def _take(self, rows: int, *, one_schema: bool) -> list[Taken]:
        """Rows of the partitions that are not paused; who waited longest has the first turn."""
        assigned = self._positions.assigned
        turns = dict.fromkeys([tp for tp in self._turns if tp in assigned] + list(assigned))
        parts = (assigned[tp] for tp in turns)
        flows = deque(part.flow for part in parts if part.flow is not None and not part.paused)
        taken = drain(flows, self._store.objects, self._store.pool, rows, _MAX_POLL_BYTES, one_schema=one_schema)
        self._turns = [flow.tp for flow in flows]
        return taken

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Put the positions back if what was polled cannot be handed out after all: no record is skipped."""
        before = [
            (part, part.want, part.flow, part.flow.position if part.flow is not None else 0)
            for part in self._positions.assigned.values()
        ]
        try:
            yield
        except BaseException:
            for part, want, flow, position in before:
                if flow is None:
                    part.move(want)
                elif part.flow is flow and flow.position != position:
                    flow.seek(position)
            raise


def _stay(state: View) -> View:
    return state

"""Wakes threads that wait for entries: this process reads them for another thread, or its committer sends them."""

from __future__ import annotations

import threading

from txnstore.chain.committer.rendezvous import Mailbox
from txnstore.chain.context import ChainContext


class News:
    """Ends pauses as soon as this process knows a new entry of any chain. Thread-safe.

    Without a place to meet other processes a pause lasts as long as it was to: nothing wakes a simulated clock.
    """

    def __init__(self, context: ChainContext) -> None:
        self._runtime, self._rendezvous = context.runtime, context.rendezvous
        #: Changes with each new entry. Any thread that publishes a state writes it, also several at a time: it is only
        #: compared with an earlier value.
        self.count = 0
        #: The mailboxes of the threads that wait. Replaced under `_lock`, which is re-entrant: a signal handler that
        #: polls leaves them as it found them. Read without it.
        self._waiting: tuple[Mailbox, ...] = ()
        self._lock = threading.RLock()

    def announce(self) -> None:
        """Wake the threads that wait, because a state was published."""
        self.count += 1
        for mailbox in self._waiting:
            mailbox.put(self)

    def wait(self, seconds: float, seen: int) -> bool:
        """Pause for so many seconds; True as soon as an entry was published after ``count`` was ``seen``."""
        if self._rendezvous is None:
            self._runtime.sleep(seconds)
            return False
        mailbox = self._rendezvous.mailbox()
        with self._lock:
            self._waiting = (*self._waiting, mailbox)
        try:
            return self.count != seen or mailbox.get(seconds) is not None
        finally:
            with self._lock:
                self._waiting = tuple(waiting for waiting in self._waiting if waiting is not mailbox)

"""Both sides of the processes that share the entries of a chain: the one that carries commands, and those that call.

A process that meets other writers asks whether one of them listens, and listens itself if not. From then on its
commands go to that process, which commits them as if they were those of threads of its own. Each caller has a thread
there, which reads and queues them, and one thread commits those of all. See docs/internals/design/committer.md.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from txnstore._version import __version__
from txnstore.chain.codec import Entry
from txnstore.chain.committer.carrying import Found, Horizons, find_answers, places_of
from txnstore.chain.committer.channel import MAX_FRAME, Channel, ChannelClosedError
from txnstore.chain.committer.messages import (
    Commands,
    Declined,
    Hello,
    Stored,
    UnreadableMessageError,
    Welcome,
    decode_message,
    encode_message,
)
from txnstore.chain.committer.rendezvous import Listener, Mailbox, Rendezvous
from txnstore.chain.group_commit import NotCarriedError, Origin, QueuedCommand
from txnstore.chain.payload import line_of
from txnstore.core.model import value_class
from txnstore.core.state import State
from txnstore.errors import StorageError, StoreNotFoundError, UnknownOutcomeError
from txnstore.runtime import Runtime

_LOG = logging.getLogger(__name__)

#: A caller asks whether the committer is there after so many latencies of it without a message, and at least so many
#: ms; it commits itself if it is not, and after so many times that time without an answer.
PATIENCE, MIN_PATIENCE_MS, MAX_WAITS = 20.0, 1_000.0, 5
#: Its patience is no longer: the first latency that a committer measures may be that of a connection that is made.
MAX_PATIENCE_MS = 3_000.0
#: A committer waits for the next commands of its callers for so many latencies.
GATHERING = 0.25
#: A larger entry goes to callers without its payload.
MAX_PUSHED = 64 * 1024
#: Seconds for which a process waits at least for the first message of another one, which may have just begun.
HELLO_SECONDS = 3.0
#: On a busy machine all processes are slow, and one that replaces the committer makes it worse for all. So a process
#: waits for so many times as long as it has waited lately, twice as long after each one that did not answer, but never
#: for more than so many ms.
PACES, MAX_SLOWNESS_MS = 4.0, 16_000.0


@value_class()
class Place:
    """What processes that share entries have in common.

    Attributes:
        url: The URL of the store.
        storage: Where that is, for the processes of one machine.
        chain: The prefix of the objects of the chain, which has the id of the store.
    """

    url: str
    storage: str
    chain: str

    @property
    def name(self) -> str:
        """The name under which the processes of a machine meet: those of equal releases, which share."""
        place = f"{__version__} {self.url} {self.chain} {self.storage}"
        return hashlib.sha256(place.encode()).hexdigest()[:32]


class Carrier(Protocol):
    """What the committer needs of its chain."""

    state: State

    def enqueue_all(self, waiters: Sequence[QueuedCommand]) -> None:
        """Queue commands of another process, which the same entry takes."""
        ...

    def commit_queued(self, waiter: QueuedCommand) -> object:
        """Commit it."""
        ...

    def take_stored(self, stored: Stored) -> None:
        """Fold an entry that another process has sent."""
        ...

    def refresh(self, until: int | None = None) -> State:
        """Read new entries."""
        ...

    def make_durable(self, sequence: int) -> None:
        """Make sure that the entries up to this one survive a power cut."""
        ...

    def read_catalog(self, until: int) -> None:
        """Read chain 0 up to an entry."""
        ...

    def known(self) -> tuple[int, int]:
        """What commands may follow from: the newest time of an entry in ms, and the newest entry of chain 0.

        What survives no power cut yet is made durable.
        """
        ...

    def has_entry(self, sequence: int, entry_hash: str) -> bool | None:
        """Whether the storage of this process has this entry; None: what was there is deleted."""
        ...

    def count_carried(self, carried: int) -> None:
        """Count commands of this process that entries of other processes carry."""
        ...

    def latency_ms(self) -> float:
        """The latency of a request, as far as it is known."""
        ...


class Committer:
    """Shares the entries of one chain with other processes.

    The holder of the head lock calls its methods, unless they say otherwise.

    Args:
        writer_id: The id of this process in its entries.
    """

    def __init__(self, chain: Carrier, rendezvous: Rendezvous, place: Place, writer_id: str, runtime: Runtime) -> None:
        self._chain, self._rendezvous, self._runtime = chain, rendezvous, runtime
        self._place, self._writer_id = place, writer_id
        self.horizons = Horizons()
        #: The channel to the committer that carries commands of this process; None: it commits itself.
        self._channel: Channel | None = None
        #: Closes it when this committer is collected.
        self._unleft: weakref.finalize[..., Committer] | None = None
        #: The channel that an entry has come from which the storage has. Written by the thread that reads the channel.
        self._known: Channel | None = None
        #: The identity of its listener, and of the last one that did not answer in time.
        self._identity: object = None
        #: Whether it is on this machine.
        self._is_near = True
        self._silent: object = None
        self._patience_ms = MIN_PATIENCE_MS
        #: How long it waits at least for any other process, after what it has waited for lately.
        self._slowness_ms = 0.0
        self._listener: Listener | None = None
        #: Whether other processes can ever be met; unset for good if the one met uses another storage.
        self._is_possible = True
        #: Whether this process may commit for others; not while its storage refuses its own entries.
        self._may_listen = True
        #: The number of the last command that was handed over.
        self._number = 0
        #: What was handed over and not answered, by number. The holder of the head lock writes it; any thread that
        #: folds an entry reads it.
        self._handed: dict[int, QueuedCommand] = {}
        #: The answers that entries had. Any thread that folds an entry adds to it.
        self._found: dict[int, Found] = {}
        #: Wakes the thread that waits for its commands: a number that was declined, or a channel that has ended.
        self._news = rendezvous.mailbox()
        #: Whether a thread waits for news; nothing reads the mailbox otherwise.
        self._is_waiting = False
        #: The processes whose commands are in the newest entry of this one, itself included: each is likely to send its
        #: next command when it has read that entry.
        self._served: frozenset[str] = frozenset()
        #: Wakes the thread that gathers commands, while one does.
        self._arrivals = rendezvous.mailbox()
        self._is_gathering = False
        #: The channels of the callers, by writer id. Any thread that has an entry reads it, without the lock; their
        #: turns are not waited for.
        self.callers: dict[str, Channel] = {}
        #: The commands of callers that are queued, for the thread that commits them; it ends at None.
        self._queued = rendezvous.mailbox()
        self._is_carrying = False
        #: Guards whether that thread was started, and who joins and parts: a closed committer, and one that calls
        #: another process, has no callers.
        self._lock = threading.RLock()
        self._closed = False

    # As a caller ------------------------------------------------------------------------------------------------------

    def join(self, *, listen: bool) -> bool:
        """Meet the other processes; True if one of them commits for this one from now on.

        Args:
            listen: Listen if no other process does.
        """
        if self._closed or not self._is_possible:
            return False
        if self._channel is not None:
            return True
        if self._listener is not None:
            if self._listener.is_current(look=listen):
                return False
            self._stop_serving()  # Another process has taken its place while this one was suspended.
        # A listener that did not answer is replaced, or each process that begins would wait for it.
        listen = self._may_listen and (listen or self._silent is not None)
        met = self._rendezvous.meet(self._place.name, partial(_serve, weakref.ref(self)), self._silent, listen=listen)
        if met is None:
            return False
        if met.channel is None:
            self._listen(met.listener)
            return False
        self._identity, self._is_near = met.identity, met.is_near
        is_welcome = False
        try:
            is_welcome = self._greet(met.channel, met.identity)
        except StorageError as error:  # The commit goes on without the other process, and finds out for itself.
            _LOG.info("entries of the committer not compared", extra={"url": self._place.url, "error": str(error)})
        finally:
            if not is_welcome:
                self._leave(met.channel)
        return is_welcome

    def _listen(self, listener: Listener | None) -> None:
        """Keep a listener until this committer is closed, or collected, or calls another one."""
        if listener is not None:
            weakref.finalize(self, listener.close)
        with self._lock:
            if not self._closed:
                self._listener = listener
        if listener is not None and self._listener is not listener:
            listener.close()

    def _greet(self, channel: Channel, identity: object) -> bool:
        """Say hello; False if the other process does not answer, or shares nothing with this one."""
        try:
            welcome = self._ask_welcome(channel, self._writer_id, HELLO_SECONDS * 1000)
        except (ChannelClosedError, UnreadableMessageError):
            welcome = None
        has_entry = None if welcome is None else self._chain.has_entry(welcome.sequence, welcome.entry_hash)
        if welcome is None or has_entry is None:
            self._silent = identity  # It is replaced: it does not answer, or knows only what is deleted.
            return False
        if not has_entry:
            self._is_possible = False
            _LOG.warning("the committer has other entries", extra={"url": self._place.url})
            return False
        self._chain.refresh(welcome.recorded)
        self._patience_ms = min(max(MIN_PATIENCE_MS, welcome.patience_ms), MAX_PATIENCE_MS)
        with self._lock:
            if self._closed:
                return False
            self._channel = channel
            # The thread that reads it keeps it, so it would stay until the other process sends something.
            self._unleft = weakref.finalize(self, channel.close)
        self._stop_serving()
        try:
            self._rendezvous.start(partial(_read, weakref.ref(self), channel))
        except RuntimeError:  # The system has no more threads.
            self._leave(channel)
            return False
        return True

    def hand_over(self, waiters: list[QueuedCommand], on_sent: Callable[[], None]) -> int:
        """Hand commands to the committer, and wait; those that entries carry are done and no longer among ``waiters``.

        The others are to be committed by this process, from the state that it has then; or to be handed over again, if
        the committer has ended or fallen silent. A command has another number then, and is carried once: the rule of
        :class:`Horizons` holds for a process and not for a number, and a committer carries nothing of an older channel.

        Returns:
            How many entries carry that were found after this call has sent them.
        """
        channel = self._channel
        for waiter in waiters:
            if waiter.origin is not None:  # This process was the committer; each caller hands over its own commands.
                waiter.error, waiter.events, waiter.done = NotCarriedError(), 0, True
        waiters[:] = [waiter for waiter in waiters if not waiter.done]
        if channel is None or not waiters:
            return 0
        state, began = self._chain.state, self._runtime.monotonic()
        self.settle(waiters)  # What was handed over before: the entries up to this state were folded.
        if not waiters:
            return 0
        not_before, catalog = self._chain.known()
        handed = {self._number + place: waiter for place, waiter in enumerate(waiters, 1)}
        commands = tuple((number, waiter.principal, waiter.command) for number, waiter in handed.items())
        try:
            frame = encode_message(Commands(state.sequence, not_before, catalog, commands))
        except Exception as error:  # noqa: BLE001 - this process decides them, and tells each caller what is wrong
            _LOG.debug("commands cannot be handed over", extra={"url": self._place.url, "error": repr(error)})
            frame = b""
        self._number += len(waiters)
        if not 0 < len(frame) <= MAX_FRAME:
            for waiter in waiters:
                waiter.is_declined = True
            return 0
        self._is_waiting = True
        try:
            for number, waiter in handed.items():
                waiter.is_doubtful = True
                self._handed[number] = waiter
            channel.send(frame)
            on_sent()
            declined = self._await_answers(channel, handed, began)
        finally:
            self._is_waiting = False
        for number in declined - self._found.keys():
            waiter = self._handed.pop(number)
            waiter.is_declined = True
            waiter.is_doubtful = any(other is waiter for other in self._handed.values())
        return self.settle(waiters)

    def _await_answers(self, channel: Channel, handed: Mapping[int, QueuedCommand], began: float) -> set[int]:
        """Wait until entries carry all commands but those that were declined, which it returns; or leave.

        Each message shows that the committer is there, although others may win the slots that it claims.
        """
        declined: set[int] = set()
        heard = began
        while self._channel is channel and not all(
            number in declined or self._is_carried(waiter) for number, waiter in handed.items()
        ):
            now, patience_ms = self._runtime.monotonic(), max(self._patience_ms, self._slowness_ms)
            remaining = min(heard + patience_ms, began + MAX_WAITS * patience_ms) - now
            news = self._news.get(remaining / 1000) if remaining > 0 else None
            if news is None and remaining > 0:
                if self._is_there():
                    heard = self._runtime.monotonic()
                    continue
                news = self._news.get(0)  # What has come while it was asked shows that it is there, too.
            if news is None:
                self._silent = self._identity
                self._leave(channel)
                continue
            heard = self._runtime.monotonic()
            if isinstance(news, Declined):
                declined.update(number for number in news.numbers if number in handed)
            elif news is channel:
                self._leave(channel)
        if self._channel is channel:
            self._waited(PACES * (self._runtime.monotonic() - began))
        return declined

    def _is_there(self) -> bool:
        """Whether the committer answers a second connection: it is slow, or others win its slots.

        One of another machine is not asked: that would cost what it costs to connect.
        """
        if not self._is_near:
            return False
        met = self._rendezvous.meet(self._place.name, lambda _: None, listen=False)
        if met is None or met.channel is None:
            return False
        try:
            is_same = met.identity == self._identity
            name = f"{self._writer_id} asks"
            return is_same and self._ask_welcome(met.channel, name, MIN_PATIENCE_MS) is not None
        except (ChannelClosedError, UnreadableMessageError):
            return False
        finally:
            met.channel.close()

    def _ask_welcome(self, channel: Channel, writer_id: str, least_ms: float) -> Welcome | None:
        """Say hello, and wait for an answer for at least so long, and as long as others have made this process wait."""
        began, patience_ms = self._runtime.monotonic(), max(least_ms, self._slowness_ms)
        welcome = _ask_welcome(channel, self._place, writer_id, patience_ms / 1000)
        self._waited(2 * patience_ms if welcome is None else PACES * (self._runtime.monotonic() - began))
        return welcome

    def _waited(self, suggested_ms: float) -> None:
        """Be as patient with other processes from now on as a wait suggests, and not much less than before."""
        self._slowness_ms = min(max(0.9 * self._slowness_ms, suggested_ms), MAX_SLOWNESS_MS)

    def _is_carried(self, waiter: QueuedCommand) -> bool:
        """Whether an entry carries a command, under any number that it was handed over with."""
        return any(self._handed.get(number) is waiter for number in list(self._found))

    def settle(self, waiters: list[QueuedCommand]) -> int:
        """Answer those of the waiters whose commands entries carry, and remove them; returns how many entries carry."""
        found = dict(self._found)
        if not found:
            return 0
        newest, carried = max(answer.sequence for answer in found.values()), 0
        if newest > self._chain.state.sequence:
            self._chain.refresh(newest)  # Another thread is about to publish it.
        self._chain.make_durable(newest)
        for number, answer in found.items():
            waiter = self._handed.get(number)
            if waiter is not None and not waiter.done:
                waiter.result, waiter.error, waiter.is_doubtful = answer.result, answer.error, False
                waiter.done = True
                carried += answer.error is None
            self._found.pop(number, None)
        for number in [number for number, waiter in self._handed.items() if waiter.done]:
            del self._handed[number]
        waiters[:] = [waiter for waiter in waiters if not waiter.done]
        self._chain.count_carried(carried)
        return carried

    def wrote(self, entry: Entry) -> None:
        """Record an entry of this process that is stored: no later one carries what was handed over before it."""
        self.horizons.record(entry)
        carried = entry.carried or ()
        is_own = sum(count for *_, count in carried) < len(entry.events)
        self._served = frozenset({writer_id for writer_id, *_ in carried} | ({self._writer_id} if is_own else set()))
        self._may_listen = True
        for number in list(self._handed):
            waiter = self._handed.pop(number)
            waiter.is_doubtful = False

    def _leave(self, channel: Channel) -> None:
        channel.close()
        if self._channel is channel:
            self._channel = None
            if self._unleft is not None:
                self._unleft.detach()

    def took(self, frame: bytes, channel: Channel) -> bool:
        """Take a message of the committer, in the thread that reads them; False ends the channel."""
        message = decode_message(frame)
        if isinstance(message, Declined):
            self._news.put(message)
        elif isinstance(message, Stored):
            if self._known is not channel and message.sequence > self._chain.state.sequence:
                # The first entry of a channel is read: the other process may use another storage of this name.
                if self._chain.refresh(message.sequence).sequence < message.sequence:
                    self._is_possible = False
                    _LOG.warning("the committer sent an entry that the storage lacks", extra={"url": self._place.url})
                    return False
                self._known = channel
            self._chain.take_stored(message)
            if self._is_waiting:
                self._news.put(message)
        return True

    def lost(self, channel: Channel) -> None:
        """Leave a channel that has ended, and wake the thread that waits for its commands, if one does."""
        self._leave(channel)
        self._news.put(channel)

    # Of all entries ---------------------------------------------------------------------------------------------------

    def places(self, entry: Entry) -> list[int]:
        """Which states inside an entry :meth:`record` needs."""
        return places_of(entry, self._writer_id) if self._handed else []

    def record(self, entry: Entry, inside: Mapping[int, State], data: bytes) -> None:
        """Record an entry that any thread of this process folds."""
        self.horizons.record(entry)
        if entry.carried and self._handed:
            self._found.update(find_answers(inside, entry, self._writer_id, dict(self._handed)))
        if self.callers:
            self.push(entry.sequence, data, durable=False)

    def skip(self, sequence: int) -> None:
        """Record that the chain was loaded again up to this entry, without a look at all entries before it."""
        self.horizons.skip(sequence)
        for number in list(self._handed):
            msg = f"the entries before {sequence}, which would tell whether the command is stored, were deleted"
            self._found.setdefault(number, Found(sequence, error=UnknownOutcomeError(msg)))
        if self._is_waiting:
            self._news.put(sequence)

    # As the committer -------------------------------------------------------------------------------------------------

    def push(self, sequence: int, data: bytes, *, durable: bool) -> None:
        """Send an entry to all callers; called by any thread."""
        if not self.callers:
            return
        is_whole = len(data) <= MAX_PUSHED
        frame = encode_message(Stored(sequence, durable, is_whole, data if is_whole else line_of(data)))
        for channel in list(self.callers.values()):
            channel.send(frame)

    def admit(self, waiters: list[QueuedCommand]) -> None:
        """Remove commands of other processes that the next entry must not carry."""
        refused = [each for each in waiters if each.origin is not None and not self._is_allowed(each.origin)]
        for waiter in refused:
            waiter.error, waiter.events, waiter.done = NotCarriedError(), 0, True
        if refused:
            waiters[:] = [waiter for waiter in waiters if not waiter.done]

    def _is_allowed(self, origin: Origin) -> bool:
        """Whether the next entry may carry a command: its process may have handed it over again by a newer channel."""
        return self.callers.get(origin.writer_id) is origin.channel and self.horizons.allow(origin)

    def gather(self, waiters: Sequence[QueuedCommand], take: Callable[[], object]) -> None:
        """Wait a little for the next commands of the processes that the newest entry of this one has served.

        Else they miss the entry that is begun now, and wait for two.

        Args:
            waiters: The commands so far.
            take: Adds those that were queued meanwhile.
        """
        served, self._served = self._served, frozenset()
        if served <= {self._writer_id}:
            return
        until = self._runtime.monotonic() + GATHERING * self._chain.latency_ms()
        self._is_gathering = True
        try:
            while True:
                take()
                arrived = {each.origin.writer_id if each.origin is not None else self._writer_id for each in waiters}
                missing = (served - arrived) & {self._writer_id, *self.callers}
                remaining = until - self._runtime.monotonic()
                if not missing or remaining <= 0 or self._arrivals.get(remaining / 1000) is None:
                    return
        finally:
            self._is_gathering = False

    def has_arrived(self) -> None:
        """Wake the thread that gathers commands: one was queued; called by any thread."""
        if self._is_gathering:
            self._arrivals.put(True)

    def greeted(self, frame: bytes | None, channel: Channel) -> str | None:
        """Welcome a caller; returns its writer id, or None if the two share nothing."""
        hello = decode_message(frame) if frame is not None else None
        if not isinstance(hello, Hello) or hello.chain != self._place.chain:
            return None
        self._welcome(hello.writer_id, channel)
        return hello.writer_id

    def asked(self, frame: bytes, writer_id: str, channel: Channel) -> None:
        """Queue what a caller asks for: the next entry of this process carries it."""
        message = decode_message(frame)
        if not isinstance(message, Commands):
            return
        self._chain.read_catalog(message.catalog)
        waiters = [
            QueuedCommand(command, principal, Origin(writer_id, number, message.after, message.not_before, channel))
            for number, principal, command in message.handed
        ]
        self._chain.enqueue_all(waiters)
        self._queued.put((waiters, channel))

    def parted(self, writer_id: str, channel: Channel) -> None:
        """Forget a caller whose channel has ended."""
        with self._lock:
            if self.callers.get(writer_id) is channel:
                del self.callers[writer_id]
                self.horizons.leave(writer_id)

    def _welcome(self, writer_id: str, channel: Channel) -> None:
        """Take a caller, and tell it from which state on it is sent all entries."""
        with self._lock:
            if self._closed or self._channel is not None:
                raise ChannelClosedError
            if not self._is_carrying:
                weakref.finalize(self, self._queued.put, None)
                self._rendezvous.start(partial(_carry, weakref.ref(self), self._queued))
                self._is_carrying = True
            self.callers[writer_id] = channel  # From now on it is sent all entries.
        state = self._chain.state
        recorded = self.horizons.join(writer_id, state.sequence)
        patience_ms = PATIENCE * self._chain.latency_ms()
        channel.send(encode_message(Welcome(state.sequence, state.entry_hash, recorded, patience_ms)))

    def carry(self, waiters: Sequence[QueuedCommand], channel: Channel) -> None:
        """Commit commands of a caller as those of a thread of this process, unless entries have them."""
        doubtful = False
        for waiter in waiters:
            try:
                self._chain.commit_queued(waiter)
            except Exception as error:  # noqa: BLE001 - the caller decides the command itself
                doubtful = doubtful or isinstance(error, UnknownOutcomeError)
                if isinstance(error, StorageError | StoreNotFoundError):
                    self._may_listen = False
        declined = tuple(
            waiter.origin.number
            for waiter in waiters
            if waiter.origin is not None and (waiter.error is not None or not waiter.events)
        )
        if not self._may_listen:  # Its callers may be able to write. A store that was deleted needs no port.
            self._stop_serving(but=channel)
        if declined and not doubtful:
            channel.send(encode_message(Declined(declined)))
        if doubtful or not self._may_listen:
            channel.close()  # If it is doubtful, the caller has to find out what is stored.

    def _stop_serving(self, but: Channel | None = None) -> None:
        """Listen no more, and part from all callers but one."""
        with self._lock:
            listener, self._listener = self._listener, None
            callers = [channel for channel in self.callers.values() if channel is not but]
        if listener is not None:
            listener.close()
        for channel in callers:
            channel.close()

    def close(self) -> None:
        """Part from all other processes; called by any thread."""
        with self._lock:
            self._closed = True
            channel = self._channel
        self._stop_serving()
        self._queued.put(None)
        if channel is not None:
            self._leave(channel)


def _ask_welcome(channel: Channel, place: Place, writer_id: str, seconds: float) -> Welcome | None:
    """Say hello, and return the answer; None if there is none in time."""
    channel.send(encode_message(Hello(place.chain, writer_id)))
    while True:
        frame = channel.receive(seconds)
        message = decode_message(frame) if frame is not None else None
        if message is None or isinstance(message, Welcome):
            return message  # What comes before it is an entry, which is read later.


@value_class()
class FoundCommitter:
    """A process that commits for others.

    Attributes:
        process_id: On this machine; None where the system does not say it.
        is_answering: False: it is suspended, or overloaded, or about to end.
        address: Where those of other machines reach it; empty for one of this machine.
    """

    process_id: int | None
    is_answering: bool
    address: str = ""


def find_committer(rendezvous: Rendezvous, place: Place, writer_id: str) -> FoundCommitter | None:
    """Find the process that commits for others of this machine, without any effect; None if there is none."""
    met = rendezvous.meet(place.name, lambda _: None, listen=False)
    if met is None or met.channel is None:
        return None
    try:
        is_answering = _ask_welcome(met.channel, place, writer_id, HELLO_SECONDS) is not None
    except (ChannelClosedError, UnreadableMessageError):
        is_answering = False
    finally:
        met.channel.close()
    return FoundCommitter(met.process_id, is_answering)


def _read(committer: weakref.ref[Committer], channel: Channel) -> None:
    """Read what the process sends that commits for this one, until the channel ends; keeps no committer alive."""
    try:
        while True:
            frame = channel.receive(None)
            caller = committer()
            if caller is None or frame is None or not caller.took(frame, channel):
                break
            del caller
    except (ChannelClosedError, UnreadableMessageError):
        pass
    except Exception as error:  # noqa: BLE001 - the thread that commits reads the entry itself, and finds the error
        _LOG.info("the committer was left", extra={"error": repr(error)})
    channel.close()
    caller = committer()
    if caller is not None:
        caller.lost(channel)


def _serve(committer: weakref.ref[Committer], channel: Channel) -> None:
    """Serve one caller until its channel ends; keeps no committer alive meanwhile."""
    writer_id = None
    try:
        frame = channel.receive(HELLO_SECONDS)
        server = committer()
        writer_id = server.greeted(frame, channel) if server is not None else None
        while writer_id is not None:
            del server
            frame = channel.receive(None)
            server = committer()
            if server is None or frame is None:
                break
            server.asked(frame, writer_id, channel)
    except (ChannelClosedError, UnreadableMessageError):
        pass
    except Exception as error:  # noqa: BLE001 - the caller commits itself
        _LOG.info("a caller was left", extra={"error": repr(error)})
    finally:
        channel.close()
        server = committer()
        if server is not None and writer_id is not None:
            server.parted(writer_id, channel)


def _carry(committer: weakref.ref[Committer], queued: Mailbox) -> None:
    """Commit what callers have queued, in order; keeps no committer alive meanwhile."""
    while True:
        commands: Any = queued.get(None)
        server = committer()
        if server is None or commands is None:
            return
        waiters, channel = commands
        try:
            server.carry(waiters, channel)
        except Exception as error:  # noqa: BLE001 - the caller commits itself, and the others are served
            _LOG.info("a caller was left", extra={"error": repr(error)})
            channel.close()
        del server, commands, waiters, channel

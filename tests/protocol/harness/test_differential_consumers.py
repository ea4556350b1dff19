"""DIF-11 for the consumer's API: random histories of producers and consumers of two topics, one deleted now and then.

Records have keys, headers and timestamps, some are large; polls return them, and they are compared with the model, with
stores, and with Kafka's own consumer (``python -m tests.harness kafka``).
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.compat.broker import RunningBroker
from tests.harness.model.consumer import Consumer
from tests.helpers.random_histories import IDS, MORE, SETTINGS, TIMEOUTS, Histories, running

__all__ = ["running"]

#: The partitions of each topic; ``u`` is deleted and created again.
TOPICS = {"t": 2, "u": 2}
#: The groups of consumers that assign partitions themselves, and of those that subscribe.
BY_HAND, SHARED = ["g", "h"], ["s"]
TIME = 1_700_000_000_000
LARGE = 200_000


class Consumers(Histories):
    """Consumers as applications use them, beside transactions of two ids and an idempotent producer."""

    weights: ClassVar[dict[str, int]] = {
        "produce": 10,
        "end": 6,
        "begin_to_read": 4,
        "poll": 12,
        "seek": 5,
        "commit": 5,
        "positions": 4,
        "pause": 2,
        "times": 2,
        "close": 2,
        "send_offsets": 2,
        "create_again": 1,
    }

    @initialize()
    def create_topic(self) -> None:
        for name, partitions in TOPICS.items():
            self.do("create_topic", topic=name, partitions=partitions)
        for number, identity in enumerate((*IDS, None)):
            self.do("init", producer=f"P{number}", id=identity, timeout_ms=TIMEOUTS[-1])

    def topics(self) -> list[str]:
        return sorted({name.rpartition("-")[0] for name in self.partitions()})

    # Producers --------------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        name = self.rng.choice(sorted(self.model.producers))
        producer = self.model.producers[name]
        if producer.transactional and producer.state == "READY":
            self.do("begin", producer=name)
        for _ in range(self.rng.randint(1, 4)):
            self.do("send", producer=name, partition=self.partition(), **self.record())
        self.do("flush", producer=name)

    def record(self) -> dict[str, Any]:
        size = LARGE if self.rng.random() < 0.05 else self.rng.randrange(5)
        return {
            "key": self.rng.choice([None, "", "k", "ключ"]),
            "value": None if self.rng.random() < 0.1 else f"v{len(self.ops)}" + "x" * size,
            "timestamp": TIME + self.rng.randrange(100),
            "headers": self.rng.choice([[], [["h", "1"]], [["h", "1"], ["h", None], ["", "ü"]]]),
        }

    def end(self) -> None:
        open_ones = [name for name, producer in self.model.producers.items() if producer.state == "IN_TRANSACTION"]
        if open_ones:
            self.do(self.rng.choice(["commit", "commit", "abort"]), producer=self.rng.choice(open_ones))

    def send_offsets(self) -> None:
        name = self.rng.choice(["P0", "P1"])
        if self.model.producers[name].state == "READY":
            self.do("begin", producer=name)
        offsets = {self.partition(): self.rng.randrange(6)}
        self.do("send_offsets", producer=name, group=self.rng.choice(BY_HAND), offsets=offsets)
        self.do("flush", producer=name)

    def create_again(self) -> None:
        """Delete ``u``, or create it; not while a transaction or a consumer is busy with it."""
        if "u" not in self.topics():
            self.do("create_topic", topic="u", partitions=TOPICS["u"])
            return
        busy = [tp for txn in self.model.broker.transactions.values() for tp in txn.partitions]
        busy += [write.partition for group in self.model.broker.groups.values() for write in group.pending()]
        if not any(tp.startswith("u-") for tp in busy):
            for name, consumer in list(self.model.consumers.items()):
                if any(tp.startswith("u-") for tp in consumer.assigned):
                    self.do("close_consumer", consumer=name)
            self.do("delete_topic", topic="u")

    # Consumers --------------------------------------------------------------------------------------------------------

    def begin_to_read(self) -> None:
        """A new consumer that assigns partitions itself, or subscribes; and another assignment of the former."""
        by_hand = [name for name, consumer in self.model.consumers.items() if not consumer.member.member]
        if by_hand and self.rng.random() < 0.3:
            self.do("assign", consumer=self.rng.choice(by_hand), partitions=self.some())
            return
        name = f"C{len(self.ops)}"
        if self.rng.random() < 0.3:
            [group] = SHARED
            if any(consumer.group == group for consumer in self.model.consumers.values()):
                return
            self.consumer(name, group, self.rng.choice(["earliest", "latest"]))
            self.do("subscribe", consumer=name, topics=self.rng.choice([["t"], self.topics()]))
            self.do("poll", consumer=name)
        else:
            self.consumer(name, self.rng.choice([None, *BY_HAND]), self.rng.choice(["earliest", "latest", "none"]))
            self.do("assign", consumer=name, partitions=self.some())

    def consumer(self, name: str, group: str | None, reset: str) -> None:
        isolation = self.rng.choice(["read_committed", "read_committed", "read_uncommitted"])
        automatic = group is not None and self.rng.random() < 0.3
        self.do("consumer", consumer=name, group=group, isolation=isolation, reset=reset, auto_commit=automatic)

    def some(self) -> list[str]:
        return sorted(self.rng.sample(self.partitions(), self.rng.randint(1, len(self.partitions()))))

    def any_consumer(self) -> tuple[str, Consumer] | None:
        """A consumer that needs no position which an open transaction may still replace."""
        free = [(name, consumer) for name, consumer in sorted(self.model.consumers.items()) if not consumer.waits()]
        return self.rng.choice(free) if free else None

    def poll(self) -> None:
        if pair := self.any_consumer():
            self.do("poll", consumer=pair[0])

    def seek(self) -> None:
        if pair := self.any_consumer():
            name, consumer = pair
            tp = self.rng.choice(sorted(consumer.assigned))
            if self.rng.random() < 0.3:
                # Kafka commits such a position only when it has been looked up.
                if consumer.reset != "none":
                    self.do("seek_to", consumer=name, partition=tp, end=self.rng.choice(["earliest", "latest"]))
                    self.look_up(name, consumer)
                return
            beyond = 0 if consumer.reset == "none" else 3
            self.do("seek", consumer=name, partition=tp, offset=self.rng.randint(0, self.log(tp).end + beyond))

    def commit(self) -> None:
        pair = self.any_consumer()
        if pair is None or pair[1].group is None:
            return
        offsets = {self.rng.choice(sorted(pair[1].assigned)): self.rng.randrange(6)}
        self.do("commit_positions", consumer=pair[0], **({"offsets": offsets} if self.rng.random() < 0.4 else {}))
        for tp in sorted(pair[1].assigned):
            self.do("committed", group=pair[1].group, partition=tp, require_stable=True)

    def positions(self) -> None:
        if (pair := self.any_consumer()) and pair[1].reset != "none":
            self.look_up(*pair)

    def look_up(self, name: str, consumer: Consumer) -> None:
        """Ask for all positions: Java's consumer looks up those that it has not, whichever it is asked for.

        Outside of the log, a store applies the policy immediately; Kafka's consumer does so in the next poll.
        """
        for tp in sorted(consumer.assigned):
            if not consumer.strays(tp):
                self.do("position", consumer=name, partition=tp)

    def pause(self) -> None:
        if pair := self.any_consumer():
            operation = self.rng.choice(["pause", "resume"])
            self.do(operation, consumer=pair[0], partition=self.rng.choice(sorted(pair[1].assigned)))

    def times(self) -> None:
        """Kafka may answer with an aborted record or a marker: asked only where there are none."""
        if pair := self.any_consumer():
            tp = self.rng.choice(sorted(pair[1].assigned))
            if not any(batch.transactional or batch.marker for batch in self.log(tp).batches):
                times = {tp: TIME + self.rng.randrange(110)}
                self.do("offsets_for_times", consumer=pair[0], times=times)

    def close(self) -> None:
        if pair := self.any_consumer():
            self.do("close_consumer", consumer=pair[0])


@pytest.mark.slow
@pytest.mark.timeout(0 if MORE else 900)
def test_dif_11_random_consumers_read_the_same_everywhere(
    running: RunningBroker | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DIF-11: what consumers see, commit and find again."""
    monkeypatch.setattr(Histories, "running", running)
    run_state_machine_as_test(Consumers, settings=SETTINGS)

"""The partitioner agrees with Kafka's published vectors, and the sticky one is sticky."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnstore.core.partitioner import murmur2, partition_for_key
from txnstore.producer.batches import StickyPartitioner

#: The vectors of Kafka's ``UtilsTest.testMurmur2``.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS.items())
def test_murmur2_equals_kafkas_vectors(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS.items())
def test_the_partition_is_the_hash_without_its_sign_bit_modulo_the_count(key: bytes, expected: int) -> None:
    # Kafka's toPositive() masks the sign bit; it is not the absolute value.
    assert partition_for_key(key, 7) == (expected & 0x7FFFFFFF) % 7


def test_the_empty_key_is_a_key() -> None:
    assert murmur2(b"") == 275646681
    assert partition_for_key(b"", 4) == 275646681 % 4


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 1000))
def test_every_key_has_a_partition(key: bytes, partitions: int) -> None:
    assert -(2**31) <= murmur2(key) < 2**31
    assert 0 <= partition_for_key(key, partitions) < partitions


def test_sticky_keeps_its_partition_until_a_new_batch() -> None:
    sticky = StickyPartitioner(random.Random(1))
    first = sticky.partition("t", 8)
    assert {sticky.partition("t", 8) for _ in range(50)} == {first}
    sticky.new_batch("t")
    assert sticky.partition("t", 8) != first


def test_sticky_uses_all_partitions_about_equally() -> None:
    sticky = StickyPartitioner(random.Random(2))
    chosen = Counter[int]()
    for _ in range(4000):
        chosen[sticky.partition("t", 4)] += 1
        sticky.new_batch("t")
    assert set(chosen) == {0, 1, 2, 3}
    assert min(chosen.values()) > 900


def test_sticky_topics_are_independent() -> None:
    sticky = StickyPartitioner(random.Random(3))
    a, b = sticky.partition("a", 100), sticky.partition("b", 100)
    sticky.new_batch("a")
    assert sticky.partition("b", 100) == b
    assert sticky.partition("a", 100) != a


def test_sticky_with_one_partition() -> None:
    sticky = StickyPartitioner(random.Random(4))
    for _ in range(3):
        assert sticky.partition("t", 1) == 0
        sticky.new_batch("t")
    sticky.new_batch("never seen")


def test_sticky_leaves_deleted_partition() -> None:
    sticky = StickyPartitioner(random.Random(5))
    while sticky.partition("t", 8) < 2:
        sticky.new_batch("t")
    # The topic was deleted and created again with fewer partitions.
    assert sticky.partition("t", 2) < 2
    sticky.new_batch("t")
    assert sticky.partition("t", 1) == 0


def test_the_same_seed_gives_the_same_choices() -> None:
    def choices(seed: int) -> list[int]:
        sticky = StickyPartitioner(random.Random(seed))
        result = []
        for _ in range(20):
            result.append(sticky.partition("t", 16))
            sticky.new_batch("t")
        return result

    assert choices(6) == choices(6)
    assert choices(6) != choices(7)

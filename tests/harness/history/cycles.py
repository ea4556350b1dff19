"""Cycles of dependencies between committed operations (JEP-12, after Elle).

``ww``: from the writer of a value to the writer of the next one in its key. ``wr``: from the writer of a value to each
of its readers. Legal cycles with ``ww`` edges exist, because two transactions may append to two partitions in any order
(JEP-13); one of only ``wr`` edges means that an operation read uncommitted records.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator

from tests.harness.history.format import Type
from tests.harness.history.index import Anomaly, Index, anomaly, observed

_Edge = tuple[int, int]


def cycles(index: Index) -> Iterator[Anomaly]:
    """G0, G1c, and their variants with the order of each process or of real time; ``PL-2-cycle``: of ww and wr."""
    ww, wr = _write_order(index), _reads(index)
    process, realtime = _processes(index), _realtime(index)
    for kind, edges in (("G0", ww), ("G1c", wr)):
        components = list(_components(edges))
        for component in components:
            yield _cycle(index, kind, component)
        reported = set(itertools.chain.from_iterable(components))
        for suffix, more in (("process", process), ("realtime", realtime)):
            for component in _components(edges + more):
                if reported.isdisjoint(component):
                    yield _cycle(index, f"{kind}-{suffix}", component)
    both = list(_components(ww + wr))
    place = {node: number for number, component in enumerate(both) for node in component}
    read = {place[one] for one, two in wr if one in place and place[one] == place.get(two)}
    for number in sorted(read):
        yield _cycle(index, "PL-2-cycle", both[number])


def _cycle(index: Index, kind: str, component: list[int]) -> Anomaly:
    operations = [index.operations[number] for number in sorted(component) if number >= 0]
    names = ", ".join(str(op) for op in operations[:4])
    return anomaly(kind, f"each follows from the others: {names}", *operations)


def _write_order(index: Index) -> list[_Edge]:
    edges = []
    for key, order in index.orders.items():
        writers = [sent[0].index for value in order.values if (sent := index.writers.get((key, value))) is not None]
        edges += [(one, two) for one, two in itertools.pairwise(writers) if one != two]
    return edges


def _reads(index: Index) -> list[_Edge]:
    edges: set[_Edge] = set()
    for op in index.operations:
        if op.type is Type.OK and op.committed_reads:
            for key, _, value in observed(op):
                sent = index.writers.get((key, value))
                if sent is not None and sent[0] is not op:
                    edges.add((sent[0].index, op.index))
    return list(edges)


def _processes(index: Index) -> list[_Edge]:
    last: dict[str, int] = {}
    edges = []
    for op in index.operations:
        if op.type is Type.OK:
            if op.process in last:
                edges.append((last[op.process], op.index))
            last[op.process] = op.index
    return edges


def _realtime(index: Index) -> list[_Edge]:
    """KnownEdges from each operation to all invoked after its end, through one node (a negative number) per time."""
    ended = sorted(
        (op.completed, op.index) for op in index.operations if op.type is Type.OK and op.completed is not None
    )
    times = [completed for completed, _ in ended]
    edges = [(number, -1 - place) for place, (_, number) in enumerate(ended)]
    edges += [(-1 - place, -2 - place) for place in range(len(ended) - 1)]
    for op in index.operations:
        before = bisect.bisect_left(times, op.invoked)
        if before:
            edges.append((-before, op.index))
    return edges


def _components(edges: Iterable[_Edge]) -> Iterator[list[int]]:
    """The strongly connected components of more than one node (Tarjan, without recursion)."""
    graph: dict[int, list[int]] = {}
    for one, two in edges:
        graph.setdefault(one, []).append(two)
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    waiting: set[int] = set()
    for root in graph:
        if root in number:
            continue
        work: list[tuple[int, Iterator[int]]] = [_enter(root, graph, number, low, stack, waiting)]
        while work:
            node, following = work[-1]
            for after in following:
                if after not in number:
                    work.append(_enter(after, graph, number, low, stack, waiting))
                    break
                if after in waiting:
                    low[node] = min(low[node], number[after])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == number[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    component.reverse()
                    waiting.difference_update(component)
                    if len(component) > 1:
                        yield component


def _enter(
    node: int, graph: dict[int, list[int]], number: dict[int, int], low: dict[int, int], stack: list[int],
    waiting: set[int],
) -> tuple[int, Iterator[int]]:  # fmt: skip
    number[node] = low[node] = len(number)
    stack.append(node)
    waiting.add(node)
    return node, iter(graph.get(node, ()))

"""The gateway: Kafka's wire protocol on a store.

A stateless process on the store: what must last is in the chains; memory holds caches, sockets, unanswered requests and
timers. Any number of gateways serve one store, and each may be killed at any time. See docs/gateway.md.
"""

"""Whether processes share entries, and which of them commits for the others of its machine, or of several."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.compactor.doctor.findings import Finding, Severity
from txnstore.connection import Connection
from txnstore.errors import InvalidConfigError


def sharing_findings(connection: Connection) -> Iterator[Finding]:
    """Report on the processes that commit for others; nothing if sharing is switched off."""
    rendezvous = connection.rendezvous()
    if rendezvous is None:
        return
    try:
        rendezvous.check()
        can_meet = True
    except OSError as error:
        can_meet = False
        message = f"the processes of this machine do not meet, and take turns unless they do by the network: {error}"
        yield Finding("sharing", "meeting", Severity.NOTE, message)
    try:
        connection.check_network()
    except (OSError, InvalidConfigError) as error:
        yield Finding("sharing", "network", Severity.NOTE, f"a process here cannot commit for other machines: {error}")
    committers = connection.chains.find_committers()
    for number, found in committers.items():
        process = "a process" if found.process_id is None else f"process {found.process_id}"
        process += f" at {found.address}" if found.address else " of this machine"
        whom = "others, also of other machines" if found.address else "others"
        message = f"{process} commits to chain {number} for {whom}"
        severity = Severity.OK
        if not found.is_answering:
            why = "it has ended, is suspended or overloaded"
            why += ", or no connection from here reaches it" if found.address else ""
            message = f"{process} listens to commit to chain {number} for {whom}, and does not answer: "
            message += f"{why}; the next process that commits takes its place"
            severity = Severity.NOTE
        yield Finding("sharing", "committer", severity, message)
    if can_meet and not committers:
        message = "processes of this machine can share entries; none commits for others now"
        yield Finding("sharing", "committer", Severity.OK, message)

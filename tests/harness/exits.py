"""How processes end after an error at open on S3: ``python -m tests.harness.exits --count 200``.

Every process must leave with its own exit status. One that a signal ends instead has been aborted by a thread of a
library: see :func:`txnstore.threads.wait_for_deliveries`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.harness.s3.servers import S3Server, storage_options
from tests.harness.s3.wire import Break, RequestLog, WireFault

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("no-store", "refused", "unreachable", "damaged")
TRANSPORTS = ("obstore", "s3fs")

#: What a program of a user does with an error.
_SCRIPT = """
import sys, txnstore
try:
    txnstore.open(sys.argv[1], storage_options={"transport": sys.argv[2]})
except txnstore.TxnStoreError as error:
    print(error, file=sys.stderr)
    sys.exit(7)
"""
#: The programs: their arguments, given the URL and the transport, and their exit status after an error.
PROGRAMS = ("command", "script")
STATUS = {"command": 1, "script": 7}


def _arguments(program: str, url: str, transport: str) -> list[str]:
    if program == "script":
        return ["-c", _SCRIPT, url, transport]
    return ["-m", "txnstore.cli", "--store", url, "--storage-option", f"transport={transport}", "info"]


@contextmanager
def failing(kind: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """A URL that cannot be opened, and the environment to open it in."""
    with S3Server() as server, RequestLog(server.url) as log:
        url = server.create_bucket(f"exits-{kind}")
        endpoint = log.url
        if kind == "refused":
            log.plan = lambda _: WireFault(Break.STATUS, 403, "SignatureDoesNotMatch")
        elif kind == "damaged":
            damaged = WireFault(Break.ANSWER, 200, body=b'{"version":2,"store_id":"dama')
            absent = WireFault(Break.STATUS, 404, "NoSuchKey")
            log.plan = lambda request: damaged if request.key == "store.json" else absent
        elif kind == "unreachable":
            endpoint = "http://127.0.0.1:9"
        options = storage_options(endpoint)
        yield (
            url,
            {
                **os.environ,
                "AWS_ACCESS_KEY_ID": options["key"],
                "AWS_SECRET_ACCESS_KEY": options["secret"],
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_DEFAULT_REGION": "us-east-1",
            },
        )


def exits(program: str, kind: str, transport: str, count: int, at_once: int = 4) -> Counter[int]:
    """The exit statuses of so many processes; negative for a signal."""
    with failing(kind) as (url, environment):
        command = [sys.executable, *_arguments(program, url, transport)]

        def run(_: int) -> int:
            done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode != STATUS[program]:
                print(f"{program} {kind} {transport}: status {done.returncode}\n{done.stderr}", file=sys.stderr)
            return done.returncode

        with ThreadPoolExecutor(at_once) as pool:
            return Counter(pool.map(run, range(count)))


def main() -> int:
    """Run all programs after all errors; exit status 1 if one does not leave with its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.exits", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--transport", choices=TRANSPORTS, default="obstore")
    parser.add_argument("--program", choices=PROGRAMS)
    parser.add_argument("--kind", choices=KINDS)
    arguments = parser.parse_args()
    sound = True
    for program in PROGRAMS if arguments.program is None else (arguments.program,):
        for kind in KINDS if arguments.kind is None else (arguments.kind,):
            counts = exits(program, kind, arguments.transport, arguments.count)
            own = counts[STATUS[program]]
            sound &= own == arguments.count
            print(
                f"{program:8} {kind:12} {arguments.transport}: {own} of {arguments.count} with its own status",
                flush=True,
            )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())

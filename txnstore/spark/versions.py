"""The features of the installed release of PySpark: the only module that depends on it.

| release | what it brought |
|---|---|
| 4.0 | the Python data source, with Arrow for batch reads and writes |
| 4.1 | a streaming sink that takes Arrow |
| 4.2 | admission control of streams: ``latestOffset`` gets the position of the query and a limit |

On 4.0 and 4.1 a stream reads in each micro-batch all that there is, and does not learn the position of a restarted
query before it plans a micro-batch; ``stream_source.py`` and ``positions.py`` say what follows from that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import datasource

from txnstore.errors import InvalidConfigError

#: The release of PySpark as numbers: (4, 2).
RELEASE = tuple(int(number) for number in re.findall(r"\d+", pyspark.__version__)[:2])
#: Whether Spark gives a stream its position and a limit when it asks for the next micro-batch.
HAS_ADMISSION_CONTROL = RELEASE >= (4, 2)

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:

    class SupportsTriggerAvailableNow:
        """Spark 4.0 and 4.1 read one micro-batch for this trigger, without the help of the source."""

    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow

if TYPE_CHECKING or RELEASE >= (4, 1):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Spark 4.0 gives Arrow to each writer that is an Arrow writer, also in a stream."""


def check_options(options: Mapping[str, str]) -> None:
    """Refuse the options of a stream that this release of Spark cannot carry out.

    Raises:
        InvalidConfigError: An option needs a newer Spark; the message names both.
    """
    if not HAS_ADMISSION_CONTROL and "maxoffsetspertrigger" in (name.lower() for name in options):
        msg = (
            f"maxOffsetsPerTrigger needs Spark 4.2 or newer. This is Spark {pyspark.__version__}, whose micro-batches "
            "read all that there is: leave the option out"
        )
        raise InvalidConfigError(msg)


__all__ = [
    "HAS_ADMISSION_CONTROL", "RELEASE", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "StreamArrowWriter",
    "SupportsTriggerAvailableNow", "check_options",
]  # fmt: skip

"""Of the S3 servers of the tests only MinIO has users and policies."""

from __future__ import annotations

import os

from tests.harness.s3.servers import GIVEN

collect_ignore = [] if os.environ.get(GIVEN) == "minio" else ["test_policies_on_minio.py"]

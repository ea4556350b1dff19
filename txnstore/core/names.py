"""The checks of :mod:`txnstore.validation` under their former name."""

from __future__ import annotations

from txnstore.validation import check_id, check_names, check_topic_name, is_unicode

__all__ = ["check_id", "check_names", "check_topic_name", "is_unicode"]

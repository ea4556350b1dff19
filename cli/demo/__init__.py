"""``txnstore demo``: exactly-once processing of real data, with Spark, a crash, a zombie, SQL and a compaction."""

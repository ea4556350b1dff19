"""Benchmarks: txnstore beside the raw baseline, interleaved in one run, so that only ratios count."""

"""Benchmarks for asv: one module a family, as in the package. See asv_bench/README.md."""

"""Benchmarks for asv, by family; `samples` has those without a module. See asv_bench/README.md."""

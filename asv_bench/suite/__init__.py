"""Benchmarks for asv: the calls of the boards (`benchmarks.workloads`), and whole models."""

"""Peers, shapes, files of numbers and arguments, which benchmarks and accuracy checks share."""

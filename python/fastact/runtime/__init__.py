"""Threads, the OpenMP runtime, the instruction set and the configuration."""

"""The benchmark behind `python -m fastact bench`, and the timing that all benchmarks use."""

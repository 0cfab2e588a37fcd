"""What the benchmarks and the accuracy checks share: peers, shapes, files of numbers, arguments."""

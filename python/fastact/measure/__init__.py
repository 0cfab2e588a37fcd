"""Parts that benchmarks and accuracy checks share: peers, formulas, calls, arguments."""

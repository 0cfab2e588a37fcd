"""The checks that `python -m fastact check` runs, and the oracle that they judge by."""

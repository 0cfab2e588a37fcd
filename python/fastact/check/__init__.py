"""What `python -m fastact check` runs, and the oracle that it judges by."""

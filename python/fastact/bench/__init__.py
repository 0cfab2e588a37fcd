"""What `python -m fastact bench` runs."""

"""The ops, a file a family: declarations, shape rules and runs; `engine` has what all share."""

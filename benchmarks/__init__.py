"""Boards of the ops' speed beside other libraries; run from the repository's root."""

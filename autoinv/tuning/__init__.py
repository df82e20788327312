"""Timing the candidates of a problem against each other; knows no strategy."""

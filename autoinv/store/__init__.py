"""Decisions and pins on disk, shared by processes; knows no torch operation."""

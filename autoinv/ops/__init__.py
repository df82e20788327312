"""The operations: what is asked for, its validation, errors and gradient. One line each in `table`."""

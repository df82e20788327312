"""Which strategy runs for a problem: the memo, and the ordered sources behind it."""

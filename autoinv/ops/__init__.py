"""The operations, a folder each: the call, its rules, its accuracy and its strategies. `table` lists them."""

"""How a call of any operation is answered in any state of torch; knows no operation by name."""

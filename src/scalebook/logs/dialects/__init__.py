"""One module per framework family; ``registry`` lists every dialect."""

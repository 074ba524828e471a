"""One module per command of the command line. Each is imported only when its command runs."""

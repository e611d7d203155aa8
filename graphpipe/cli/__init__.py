"""The command line: argument parsing, one file per verb."""

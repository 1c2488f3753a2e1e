"""The `muster` command line: one file per command under `commands/`, loaded only when that command runs."""

"""The commands, one file each: arguments in, exit code out, nothing else. `app` holds them together."""

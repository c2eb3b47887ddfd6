"""Import of command lines and configurations of other tools as recipes."""

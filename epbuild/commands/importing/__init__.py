"""Imports: command lines and configurations of other tools as recipes."""

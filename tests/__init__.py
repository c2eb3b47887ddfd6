"""Tests of epbuild: one folder for each package of the program, and `support` for helpers that several folders share."""

"""Tests of epbuild: one folder for each room of the program, and `support`, which several rooms share."""

"""`epbuild bisect`: find the part of a model that fails to compile, or that computes wrong numbers."""

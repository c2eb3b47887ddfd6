"""`epbuild bisect`: search for the nodes of a model that are at fault."""

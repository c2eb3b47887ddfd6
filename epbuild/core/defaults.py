"""Fixed names of files: the recipe, the workspace, documents of outputs."""

DEFAULT_RECIPE = "epbuild.yaml"
WORKSPACE = ".epbuild"
MANIFEST = "manifest.json"
STATEMENT = ".intoto.json"
"""Suffix of the provenance beside an archive, which is named like the archive."""

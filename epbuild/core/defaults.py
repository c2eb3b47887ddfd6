"""File names that are fixed: the default recipe and the workspace's folder."""

DEFAULT_RECIPE = "epbuild.yaml"
WORKSPACE = ".epbuild"

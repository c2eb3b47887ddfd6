"""Fixed file names: the default recipe and the folder of the workspace."""

DEFAULT_RECIPE = "epbuild.yaml"
WORKSPACE = ".epbuild"

"""What is left of each rule of the house: lists that only shrink."""

LONG_FILES: set[str] = set()
CHAINS: dict[str, int] = {}
CIRCLES: set[str] = set()
HELPERS: set[str] = {"_read"}
CLASSES: set[str] = {
    "CustomOps",
    "Group",
    "Member",
    "Misfit",
    "Output",
    "Part",
    "Preparation",
    "Refused",
    "SourceModel",
    "Toolchain",
    "Variant",
    "_Reading",
    "_Staged",
}
FIRST_LINES: set[str] = {
    "epbuild.commands.init.answers",
    "epbuild.commands.rebuild",
    "epbuild.compile.worker.preparations",
    "epbuild.compile.worker.preparations.float16",
    "epbuild.compile.worker.preparations.infer_shapes",
    "epbuild.compile.worker.preparations.quantize",
    "epbuild.compile.worker.preparations.step",
    "epbuild.plan.request",
}

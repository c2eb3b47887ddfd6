"""How artifacts are laid out for people: layouts, directories that are swapped in whole, manifests, packages, archives, provenance."""

from typing import TYPE_CHECKING

from epbuild.emit.directory import Owned, mend, prepare, swap_in, unfinished
from epbuild.emit.entries import free_name
from epbuild.emit.jsonfile import JsonFile
from epbuild.emit.layout import Placed, Stored, StoredModel, arrange
from epbuild.emit.manifest import ManifestModel, render
from epbuild.emit.placing import place_all
from epbuild.emit.recorded import emitted_files, listed_files
from epbuild.emit.tree import Content, Pour, Role, Write
from epbuild.late import late

if TYPE_CHECKING:
    from epbuild.emit.archive import Form, compressor, write_archive, zstandard_package
    from epbuild.emit.assets import share_files
    from epbuild.emit.bom import bill
    from epbuild.emit.emitted import EmittedModel, base_model, base_models, compiled_models
    from epbuild.emit.genai import GenaiError, Stage, check_base, check_stages, genai_config
    from epbuild.emit.materials import Built, InputFile, Materials, Prepared, RecipeFiles, gather, recipe_file, source_name
    from epbuild.emit.oci import CONTENT_DIGEST, CONTENT_SIZE, MANIFEST_TYPE, TITLE, ZSTD_TYPE, Image, image
    from epbuild.emit.package import Inference, Variant, check_package, for_inference, package_manifest
    from epbuild.emit.provenance import Subject, is_statement_about, statement
    from epbuild.emit.squeezing import Squeezed, is_squeezed, squeeze, squeezed

__all__ = [
    "CONTENT_DIGEST",
    "CONTENT_SIZE",
    "MANIFEST_TYPE",
    "TITLE",
    "ZSTD_TYPE",
    "Built",
    "Content",
    "EmittedModel",
    "Form",
    "GenaiError",
    "Image",
    "Inference",
    "InputFile",
    "JsonFile",
    "ManifestModel",
    "Materials",
    "Owned",
    "Placed",
    "Pour",
    "Prepared",
    "RecipeFiles",
    "Role",
    "Squeezed",
    "Stage",
    "Stored",
    "StoredModel",
    "Subject",
    "Variant",
    "Write",
    "arrange",
    "base_model",
    "base_models",
    "bill",
    "check_base",
    "check_package",
    "check_stages",
    "compiled_models",
    "compressor",
    "emitted_files",
    "for_inference",
    "free_name",
    "gather",
    "genai_config",
    "image",
    "is_squeezed",
    "is_statement_about",
    "listed_files",
    "mend",
    "package_manifest",
    "place_all",
    "prepare",
    "recipe_file",
    "render",
    "share_files",
    "source_name",
    "squeeze",
    "squeezed",
    "statement",
    "swap_in",
    "unfinished",
    "write_archive",
    "zstandard_package",
]

__getattr__ = late(
    __name__,
    {
        "archive": ("Form", "compressor", "write_archive", "zstandard_package"),
        "assets": ("share_files",),
        "bom": ("bill",),
        "emitted": ("EmittedModel", "base_model", "base_models", "compiled_models"),
        "genai": ("GenaiError", "Stage", "check_base", "check_stages", "genai_config"),
        "materials": ("Built", "InputFile", "Materials", "Prepared", "RecipeFiles", "gather", "recipe_file", "source_name"),
        "oci": ("CONTENT_DIGEST", "CONTENT_SIZE", "MANIFEST_TYPE", "TITLE", "ZSTD_TYPE", "Image", "image"),
        "package": ("Inference", "Variant", "check_package", "for_inference", "package_manifest"),
        "provenance": ("Subject", "is_statement_about", "statement"),
        "squeezing": ("Squeezed", "is_squeezed", "squeeze", "squeezed"),
    },
)

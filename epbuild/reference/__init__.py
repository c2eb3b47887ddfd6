"""The catalog and the recipe's schema as people read them: a schema for their editors, and the reference pages under `docs/`."""

from epbuild.reference.editor import SCHEMAS, editor_schema
from epbuild.reference.pages import reference_pages

__all__ = ["SCHEMAS", "editor_schema", "reference_pages"]

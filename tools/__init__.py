"""Programs for developers of epbuild; no part of the wheel."""

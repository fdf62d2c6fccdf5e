"""Build src/capro/demo/emoji from npm packages: pictures, names, licences.

    python scripts/make_emoji.py        # needs npm and Pillow; downloads 160 MB, keeps 1 MB

The emoji are those that `capro.demo.composition` names. The packages are pinned, and checked by the head
of their SHA-256:

- Noto Emoji and Twemoji: the 64 px pictures of emoji-datasource-*, pixels unchanged, stored anew
  as optimised PNG;
- Fluent Emoji 3D: 256 px WebP reduced to 64 px (Lanczos), stored as PNG;
- CLDR: the English short name and keywords, into emoji.json.

The licence of a wrapper package is not that of the pictures in it: LICENSE-*.txt are the licences
of the designs themselves. README.md in the folder is written by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from PIL import Image

from capro.demo.composition import codes

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src" / "capro" / "demo" / "emoji"
SIDE = 64
PACKAGES = {
    "emoji-datasource-google@16.0.0": "fb5fd131b362aab7a55542d2a147a797",
    "emoji-datasource-twitter@16.0.0": "f64a530c63bca463bd8317fdc4615ce6",
    "@lobehub/fluent-emoji-3d@1.1.0": "c1bb7eee7de090205a232518a9ab4adb",
    "cldr-annotations-full@48.2.0": "28576e51225deb51e3ddd734b0f824a0",
    "twemoji@14.0.2": "5350eac1be60cb68ae48b60f1a53f597",  # for LICENSE-GRAPHICS
}
PICTURES = {
    "noto": ("emoji-datasource-google@16.0.0", "package/img/google/64/{}.png"),
    "twemoji": ("emoji-datasource-twitter@16.0.0", "package/img/twitter/64/{}.png"),
    "fluent": ("@lobehub/fluent-emoji-3d@1.1.0", "package/assets/{}.webp"),
}


def fetch(package: str, folder: Path) -> tarfile.TarFile:
    """Download one package with `npm pack` and open it, if it is the one that we know."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), package]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder)
    archive = folder / done.stdout.split()[-1]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if not digest.startswith(PACKAGES[package]):
        sys.exit(f"error: {package}: SHA-256 is {digest}, expected {PACKAGES[package]}...")
    return tarfile.open(archive)


def member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        sys.exit(f"error: {archive.name}: {name} is no file")
    return file.read()


def write_pictures(archives: dict[str, tarfile.TarFile], scratch: Path) -> None:
    for design, (package, pattern) in PICTURES.items():
        folder = TARGET / design
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for code in codes():
            name = pattern.format(code)
            raw = scratch / Path(name).name
            raw.write_bytes(member(archives[package], name))
            image = Image.open(raw).convert("RGBA")
            if image.size != (SIDE, SIDE):
                image = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            image.save(folder / f"{code}.png", optimize=True)


def write_table(cldr: tarfile.TarFile) -> None:
    text = member(cldr, "package/annotations/en/annotations.json")
    annotations = json.loads(text)["annotations"]["annotations"]
    rows = []
    for code in codes():
        points = [chr(int(point, 16)) for point in code.split("-") if point != "fe0f"]
        entry = annotations["".join(points)]  # CLDR's keys leave the variation selector out
        row = {"name": entry["tts"][0], "keywords": entry["default"]}
        rows.append(f'"{code}": {json.dumps(row, ensure_ascii=False)}')
    table = "{\n" + ",\n".join(rows) + "\n}\n"
    (TARGET / "emoji.json").write_text(table, encoding="utf-8")


def write_licences(archives: dict[str, tarfile.TarFile]) -> None:
    datasource = member(archives["emoji-datasource-google@16.0.0"], "package/LICENSE")
    graphics = member(archives["twemoji@14.0.2"], "package/LICENSE-GRAPHICS")
    unicode = member(archives["cldr-annotations-full@48.2.0"], "package/LICENSE")
    (TARGET / "LICENSE-emoji-datasource.txt").write_bytes(datasource)
    (TARGET / "LICENSE-twemoji.txt").write_bytes(graphics)
    (TARGET / "LICENSE-cldr.txt").write_bytes(unicode)
    # Noto's pictures are under the Apache licence 2.0, whose text is also that of this project.
    shutil.copyfile(ROOT / "LICENSE", TARGET / "LICENSE-noto.txt")
    # The Fluent package names the MIT licence without its text: same text, their copyright lines.
    head, _, body = datasource.decode().partition("Copyright (c) 2013 Cal Henderson\n")
    lines = "Copyright (c) Microsoft Corporation.\nCopyright (c) 2023 LobeHub (the npm package)\n"
    (TARGET / "LICENSE-fluent.txt").write_text(head + lines + body, encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        archives = {package: fetch(package, scratch) for package in PACKAGES}
        write_pictures(archives, scratch)
        write_table(archives["cldr-annotations-full@48.2.0"])
        write_licences(archives)
        for archive in archives.values():
            archive.close()
    size = sum(file.stat().st_size for file in TARGET.rglob("*") if file.is_file())
    print(f"{len(codes())} emoji x {len(PICTURES)} designs, {size / 1e6:.2f} MB in {TARGET}")


if __name__ == "__main__":
    main()

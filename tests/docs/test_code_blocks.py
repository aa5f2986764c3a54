"""The documentation is true: its Python runs, its commands exist.

The untitled Python blocks of a page are one program, run in order in a fresh process with the variables of an object
server exported. A block with `title="name.py"` is a file of its own, written beside it and run after it, by pytest if
its name says so. Lines outside a block are blanked rather than removed: line numbers are the page's.
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from penstock.cli import app
from penstock.testing import ObjectServer

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs/index.md",
    *sorted((ROOT / "docs/guide").glob("*.md")),
]
LANGUAGES = {"python", "bash", "text"}

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^`]*)$")
TITLE = re.compile(r'title="([^"]+)"')
OPT_OUT = re.compile(r"<!-- not executed: *(.*?) *-->")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line of code, counted from 1."""

    page: Path
    line: int
    info: str
    code: str
    reason: str | None

    @property
    def where(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def language(self):
        return self.info.split()[0] if self.info.split() else ""

    @property
    def title(self):
        match = TITLE.search(self.info)
        return match[1] if match else None


def blocks_of(page):
    blocks, opening, reason = [], None, None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        fence = FENCE.match(line)
        if opening is None and fence:
            opening = (number, fence)
        elif (
            opening is not None
            and fence
            and fence["ticks"] == opening[1]["ticks"]
            and not fence["info"].strip()
        ):
            first = opening[0] + 1
            code = textwrap.dedent("\n".join(lines[first - 1 : number - 1]))
            blocks.append(Block(page, first, opening[1]["info"].strip(), code, reason))
            opening = reason = None
        elif opening is None and line.strip():
            match = OPT_OUT.search(line)
            reason = match[1] if match else None
    assert opening is None, f"{page}: the block opened in line {opening[0]} is never closed"
    return blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python" and block.reason is None]
COMMANDS = [block for block in BLOCKS if block.language == "bash"]
OPTED_OUT = [block for block in BLOCKS if block.reason is not None]


def programs():
    """(file name, blocks) of what to run, in the order of the pages."""
    found = {}
    for block in PYTHON:
        found.setdefault((block.page, block.title or f"{block.page.stem.lower()}.py"), []).append(
            block
        )
    return [
        pytest.param(name, blocks, id=f"{page.relative_to(ROOT)}:{name}")
        for (page, name), blocks in found.items()
    ]


def source_of(blocks):
    lines = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.splitlines()
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def environment():
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_"))
    }
    with ObjectServer(buckets=["train"]) as server:
        yield clean | server.env


@pytest.mark.parametrize(("name", "blocks"), programs())
def test_a_python_block_runs(name, blocks, environment, tmp_path):
    page = blocks[0].page.relative_to(ROOT)
    source = source_of(blocks)
    compile(source, str(page), "exec")
    (tmp_path / name).write_text(source, encoding="utf-8")
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if name.startswith("test_") else []
    done = subprocess.run(
        [sys.executable, *runner, name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if done.returncode != 0:
        output = done.stdout + done.stderr
        lines = re.findall(rf'{re.escape(name)}(?:", line |:)(\d+)', output)
        pytest.fail(
            f"{page}:{lines[-1] if lines else blocks[0].line} failed\n{output}", pytrace=False
        )


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.where)
def test_a_command_exists(block):
    text = block.code.replace("\\\n", " ")
    for words in (shlex.split(line, comments=True) for line in text.splitlines()):
        match words:
            case []:
                pass
            case ["penstock", *arguments]:
                assert_penstock_accepts(arguments, block.where)
            case ["python", "-m", module]:
                assert find_spec(module), f"{block.where}: there is no module {module}"
            case ["make", *arguments]:
                assert_make_knows([word for word in arguments if "=" not in word], block.where)
            case ["pip", "install", *arguments]:
                assert_extras_exist(arguments, block.where)
            case _:
                pytest.fail(
                    f"{block.where}: nothing here can check {words[0]!r}; teach it to",
                    pytrace=False,
                )


def assert_penstock_accepts(arguments, where):
    """Parses as the real command line would, without running anything."""
    command, context, name, rest = typer.main.get_command(app), None, "penstock", arguments
    try:
        context = command.make_context(name, list(rest))
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, list(rest))
            context = command.make_context(name, list(rest), parent=context)
    except Exception as exc:  # noqa: BLE001 - whatever the parser raises is the finding
        pytest.fail(f"{where}: penstock {shlex.join(arguments)}: {exc}", pytrace=False)


def assert_make_knows(targets, where):
    known = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert set(targets) <= known, f"{where}: the Makefile has {sorted(known)}"


def assert_extras_exist(arguments, where):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for argument in arguments:
        for extras in re.findall(r"^(?:\.|penstock)\[(.*)\]$", argument):
            unknown = set(extras.split(",")) - set(project["optional-dependencies"])
            assert not unknown, f"{where}: there is no extra {sorted(unknown)}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_a_block_names_its_language(block):
    """Otherwise Python tagged as anything else would escape."""
    assert block.language in LANGUAGES, f"{block.where}: tag it as one of {sorted(LANGUAGES)}"


@pytest.mark.parametrize(
    "block", OPTED_OUT or [None], ids=lambda block: block.where if block else "none"
)
def test_a_block_that_is_not_executed_says_why(block):
    """Shown as skipped, with its reason, in the summary of every run."""
    if block is not None:
        assert block.reason, f"{block.where}: <!-- not executed: reason --> needs a reason"
        pytest.skip(f"{block.where}: {block.reason}")

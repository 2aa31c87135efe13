"""The house: imports go one way, and jobs only wire."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import COMMANDS

ROOT = Path(__file__).parent.parent
OWN = {"extractors", "index", "pipeline", "jobs"}
ALLOWED = {
    "extractors": {"extractors"},
    "index": {"index"},
    "pipeline": {"pipeline", "extractors", "index"},
    "jobs": {"jobs", "pipeline", "extractors"},
}
# Who may know which library.
OWNERS = {
    "torch": {"extractors", "pipeline"},
    "transformers": {"extractors", "pipeline"},
    "faiss": {"index"},
    "ray": {"pipeline"},
    "pyarrow": {"pipeline", "jobs"},
    "fsspec": {"pipeline"},
}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(OWN))
def test_imports_follow_the_arrows(package: str) -> None:
    files = sorted((ROOT / package).glob("*.py"))
    assert files
    for path in files:
        imported = _imports(path)
        assert imported & OWN <= ALLOWED[package], path
        strangers = {name for name in imported & set(OWNERS) if package not in OWNERS[name]}
        assert not strangers, (path, strangers)


def test_jobs_only_wire() -> None:
    for path in (ROOT / "jobs").glob("*.py"):
        if path.name != "cli.py":
            assert len(path.read_text().splitlines()) < 60, path


def test_a_process_that_tokenizes_imports_no_torch() -> None:
    code = "import sys, pipeline.tokenizing; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_help_and_refused_options_wait_for_no_torch() -> None:
    imports = ", ".join(f"jobs.{command}" for command in COMMANDS)
    code = f"import sys, {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

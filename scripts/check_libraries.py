"""Real libraries with and without autoinv.patched: their tests, and the time of some of their functions.

A throw-away environment takes torch and autoinv from this one, and the libraries, at the versions named here, from the
package index. Their tests come from their sources where those hold tests; else a small program of ours uses the
library's public functions (scripts/libraries/). Exits 1 when a test passes with torch alone and fails when patched, or
when a bar of speed is missed with one thread. Takes about three minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

OURS = Path(__file__).parent / "libraries"
TIMEOUT_S = 900


@dataclass(frozen=True)
class Library:
    """A library at one version, and where its tests are: in its source archive, or a file of ours."""

    name: str
    version: str
    tests: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


LIBRARIES = (
    Library("linear_operator", "0.6.1", "test"),
    Library("roma", "1.6", "test"),  # later versions have no source archive
    Library("kornia", "0.9.0", "program_of_kornia.py"),
    Library("torch-kf", "0.4.3", "program_of_torch_kf.py"),
)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment(folder)
        worse = [failed for library in LIBRARIES for failed in compare(library, python, folder)]
        for failed in worse:
            print(f"FAILS ONLY WHEN PATCHED {failed}")
        # With one thread the figures depend little on what else the machine does: there the bars are checked.
        slow = times(python, folder, threads="1")
        times(python, folder, threads=os.environ.get("OMP_NUM_THREADS", ""))
    return int(bool(worse or slow))


def environment(folder: Path) -> Path:
    """Make the throw-away environment; return its Python."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    (site / "development.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip(python, "install", *(library.requirement for library in LIBRARIES))
    return python


def pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        [python, "-m", "pip", *arguments, "-q"], timeout=TIMEOUT_S, check=True, stderr=subprocess.DEVNULL
    )


def compare(library: Library, python: Path, folder: Path) -> list[str]:
    """Run a library's tests both ways, print the counts, and return those that only torch alone passes."""
    tests = OURS / library.tests
    if not tests.exists():
        pip(python, "download", "--no-deps", "--no-binary", ":all:", library.requirement, "-d", str(folder))
        (archive,) = folder.glob(f"{library.name}-{library.version}.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        tests = folder / f"{library.name}-{library.version}" / library.tests
    plain, patched = (results(python, tests, folder, is_patched) for is_patched in (False, True))
    worse = [name for name, outcome in plain.items() if outcome == "passed" and patched.get(name) != "passed"]
    better = [
        name for name, outcome in patched.items() if outcome == "passed" and plain.get(name) != "passed"
    ]
    reached = (folder / "reached").read_text().split()
    print(
        f"{library.requirement}: {len(plain)} tests, {list(plain.values()).count('passed')} pass with torch alone, "
        f"{list(patched.values()).count('passed')} patched; {len(worse)} pass only with torch alone, "
        f"{len(better)} only patched; {reached[0]} of them invert, {reached[1]} times in all",
        flush=True,
    )
    return [f"{library.requirement} {name}" for name in worse]


def times(python: Path, folder: Path, threads: str) -> bool:
    """Time functions of the libraries both ways; return whether a bar was missed."""
    print(f"\nOMP_NUM_THREADS={threads or '(not set)'}", flush=True)
    env = {**os.environ, "OMP_NUM_THREADS": threads, "AUTOINV_CACHE_DIR": str(folder / "cache")}
    if not threads:
        del env["OMP_NUM_THREADS"]
    return (
        subprocess.run([python, OURS / "times.py"], env=env, timeout=TIMEOUT_S, check=False).returncode != 0
    )


def results(python: Path, tests: Path, folder: Path, is_patched: bool) -> dict[str, str]:
    """Return what became of each test that was not skipped."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            "-p",
            "under_patched",
            f"--junitxml={report}",
            tests,
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(OURS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "UNDER_PATCHED": str(folder / "reached") if is_patched else "",
            "AUTOINV_CACHE_DIR": str(folder / "cache"),
        },
        cwd=tests.parent,
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=False,
    )
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        if kinds != {"skipped"}:
            found[f"{case.get('classname')}.{case.get('name')}"] = "failed" if kinds else "passed"
    return found


if __name__ == "__main__":
    sys.exit(main())

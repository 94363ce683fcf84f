"""Makes the whole voice: data, then two trainings at a time, each in one thread, and the judgement in the end.

``python make.py --folder F --wordnet W``; run again it goes on where it was stopped.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
BESIDE = ("vocoder",)                                   # while the others run one after the other
AFTER = ("tokenizer", "encode", "flow", "lm")


def run(script: str, *arguments: object) -> None:
    """One script to its end; its own words go to FOLDER/SCRIPT.log."""
    folder = Path(str(arguments[arguments.index("--folder") + 1]))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{script}.log").open("a", encoding="utf-8") as log:
        print(script, flush=True)
        command = [sys.executable, HERE / f"{script}.py", *map(str, arguments)]
        subprocess.run(command, check=True, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--wordnet", type=Path, required=True, help="the folder with data.noun and its like")
    parser.add_argument("--hours", type=float, default=10)
    given = parser.parse_args()
    folder = given.folder.absolute()
    data = folder / "data"
    run("speech", "--folder", data, "--wordnet", given.wordnet.absolute(), "--hours", given.hours)
    failed = []

    def all_of(scripts: tuple[str, ...]) -> None:
        try:
            for script in scripts:
                run(script, "--data", data, "--folder", folder, "--threads", 1)
        except subprocess.CalledProcessError as problem:
            failed.append(problem)

    threads = [threading.Thread(target=all_of, args=(scripts,)) for scripts in (BESIDE, AFTER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        print(f"{failed[0]}; its log is in {folder}", file=sys.stderr)
        return 1
    run("judge", "--folder", folder)
    print((folder / "judge.log").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

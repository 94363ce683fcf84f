"""Runs a workflow in the genuine ComfyUI and writes its audio: ``python workflows/run.py --help``."""
import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036, for those who have an older one
    sys.exit("Python {}.{} is too old here; start this with 3.10 or newer.".format(*sys.version_info[:2]))

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))      # PYTHONSAFEPATH leaves it out

from runner.cli import main  # noqa: E402, after what it needs

if __name__ == "__main__":
    sys.exit(main())

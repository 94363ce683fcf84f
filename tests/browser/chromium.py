"""The Chromium that opens ComfyUI's page: one of this machine, found or installed."""
from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "SPEECHWRIGHT_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "microsoft-edge", "chrome")
# Where installers put it without a name on the PATH, and what `playwright install chromium` leaves.
PLACES = {
    "linux": ("/snap/bin/chromium", "~/.cache/ms-playwright/chromium-*/chrome-linux*/chrome"),
    "darwin": ("/Applications/Chromium.app/Contents/MacOS/Chromium",
               "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
               "~/Library/Caches/ms-playwright/chromium-*/chrome-mac*/*.app/Contents/MacOS/*"),
    "win32": ("C:/Program Files*/Google/Chrome/Application/chrome.exe",
              "C:/Program Files*/Microsoft/Edge/Application/msedge.exe",
              "~/AppData/Local/ms-playwright/chromium-*/chrome-win*/chrome.exe"),
}
HOW = ("the tests of ComfyUI's page need Chromium. On Debian, `apt-get install chromium`; elsewhere, install Chromium "
       f"or Chrome. {VARIABLE} names one that is not found by itself.")
OPTIONS = (
    "--no-sandbox",                 # a container's root has none
    "--disable-gpu", "--disable-quic", "--disable-sync", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--font-render-hinting=none", "--lang=en-US",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


class NoChromium(RuntimeError):
    """There is none; the text says how to get it."""


def find() -> Path:
    """The program, or NoChromium."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise NoChromium(f"{VARIABLE} names {named}, which is no file; correct or unset it.")
        return Path(named)
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    for place in PLACES.get(sys.platform, ()):
        for path in sorted(glob.glob(os.path.expanduser(place)), reverse=True):
            if os.access(path, os.X_OK):
                return Path(path)
    raise NoChromium(HOW)


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def install() -> None:
    """Have Debian's package manager install it, for a container of continuous integration whose user is root."""
    if shutil.which("apt-get") is None or not is_root():
        raise NoChromium(f"only root on Debian or its like can have it installed from here; {HOW}")
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        done = subprocess.run(["apt-get", *arguments], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if done.returncode:
            raise NoChromium(f"apt-get {' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{HOW}")

"""Where the C++ library ddp lies: python3 -m ddp --cmake-dir."""

import os
import pathlib
import sys

_folder = pathlib.Path(__file__).resolve().parent


def cmake_dir():
    """The folder of ddp-config.cmake, for CMAKE_PREFIX_PATH."""
    return str(_folder / "lib" / "cmake" / "ddp")


def launch():
    """ddp-launch on PATH: becomes the program, with its own process id and signals."""
    os.execv(_folder / "bin" / "ddp-launch", ["ddp-launch", *sys.argv[1:]])

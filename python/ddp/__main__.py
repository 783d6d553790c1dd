import argparse
import importlib.metadata

import ddp

parser = argparse.ArgumentParser(prog="python3 -m ddp", description=ddp.__doc__)
what = parser.add_mutually_exclusive_group(required=True)
what.add_argument("--cmake-dir", action="store_true", help="print the folder of ddp-config.cmake, for CMAKE_PREFIX_PATH")
what.add_argument("--version", action="version", version=importlib.metadata.version("ddp"))
parser.parse_args()
print(ddp.cmake_dir())

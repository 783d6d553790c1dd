#!/usr/bin/env bash
# Makes the web site of README.md, docs/ and the public headers, in FOLDER/html: ./deploy/site.sh [FOLDER]
#
# FOLDER is build/site if none is given. Any warning is a failure: a link that leads nowhere, a picture that is not there.
# Links to other sites are not followed. Wants Doxygen, and installs docs/site/requirements.txt from PyPI into FOLDER/python,
# unless SITE_PYTHON names an interpreter that has it.
set -euo pipefail
work=$(realpath -m "${1:-"$(dirname "${BASH_SOURCE[0]}")/../build/site"}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${SITE_PYTHON:-$work/python/bin/python}

if ! command -v doxygen >/dev/null; then
  echo "site.sh: expected doxygen, found none. Install the package doxygen" >&2
  exit 69
fi
rm -rf "$work"/{html,doctrees,source,xml}
mkdir -p "$work/source"
if [[ -z ${SITE_PYTHON-} ]]; then
  python3 -m venv "$work/python"  # Debian: the package python3-venv
  "$python" -m pip install --quiet --disable-pip-version-check -r docs/site/requirements.txt
fi

# Sphinx reads a copy, with pages of the headers, and the navigation below the README.
cp -r ./*.md LICENSE docs examples bench deploy "$work/source"
rm -r "$work/source/docs/site"
cat docs/site/navigation.md >>"$work/source/README.md"
{
  cat docs/Doxyfile
  printf '%s\n' "OUTPUT_DIRECTORY = $work" 'GENERATE_HTML = NO' 'GENERATE_XML = YES' 'MAX_INITIALIZER_LINES = 1'
} | doxygen -
"$python" docs/site/headers.py "$work/xml" "$work/source"
"$python" -m sphinx --fail-on-warning --quiet --jobs auto --conf-dir docs/site --doctree-dir "$work/doctrees" \
  --define breathe_projects.ddp="$work/xml" "$work/source" "$work/html"
cp "$work/html/README.html" "$work/html/index.html"
echo "$work/html/index.html"

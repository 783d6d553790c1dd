#!/usr/bin/env bash
# The web site is made without a warning, code in the pages leads to the headers, and what leads nowhere is a failure. Ends
# with 77 where the generator is not there. site.sh SOURCE_FOLDER WORK
set -euo pipefail
source=$1 work=$2
export SITE_PYTHON=${DDP_TEST_PYTHON:-python3}
command -v doxygen >/dev/null || { echo "SKIPPED: no doxygen here (package doxygen)"; exit 77; }
"$SITE_PYTHON" -c 'import breathe, furo, myst_parser, sphinx_copybutton' 2>/dev/null ||
  { echo "SKIPPED: $SITE_PYTHON lacks docs/site/requirements.txt; DDP_TEST_PYTHON may name another"; exit 77; }

"$source/deploy/site.sh" "$work/whole"
for found in index.html=_images/step.svg index.html=docs/guide.html docs/guide.html=world.hpp.html#_CPPv4N3ddp5WorldE \
  searchindex.js=rebuild; do
  grep -qF "${found#*=}" "$work/whole/html/${found%%=*}" || { echo "expected ${found#*=} in ${found%%=*}"; exit 1; }
done

# A repository with one page and one header.
small=$work/small
rm -rf "$small"
mkdir -p "$small"/{bench,docs,examples,include/ddp}
cp -r "$source/deploy" "$source/LICENSE" "$small"
cp -r "$source"/docs/{site,Doxyfile} "$small/docs"
printf '%s\n' '```{toctree}' docs/page include/ddp '```' >"$small/docs/site/navigation.md"
echo '# Page' >"$small/docs/page.md"
cat >"$small/include/ddp/world.hpp" <<'END'
// A job.
#pragma once
namespace ddp {
/// A rank's view of its job.
class World {
 public:
  /// Of what() there is more than one.
  void rebuild();
 private:
  int hidden_;
};
/// Averages.
class DistributedDataParallel {
 public:
  /// Of ranks.
  explicit DistributedDataParallel(World& world);
  /// A gradient is written.
  void gradient_ready(int index);
};
/// What is chosen.
struct DistributedDataParallelOptions {
  /// Bits.
  bool deterministic = false;
};
/// Of a library.
namespace libtorch {
/// Its own.
class World {};
}
}
END
cat >"$small/README.md" <<'END'
# Small
Linked: `World`, `ddp::World`, `World::rebuild()`, `gradient_ready(i)`, `Options::deterministic`, `ddp::libtorch::World`,
[the header](include/ddp/world.hpp). Not linked: `rebuild()`, `World::hidden_`, `world`,
`World::Nothing`, [`World`](docs/page.md), **[`World`](#small)**.
END
"$small/deploy/site.sh" "$work/small.site"
linked=$(grep -oE '<a [^>]*href="include/ddp/world.hpp.html#[^"]*"[^>]*><code' "$work/small.site/html/index.html" |
  grep -oE '#[^"]*' | tr '\n' ' ')
expected='#_CPPv4N3ddp5WorldE #_CPPv4N3ddp5WorldE #_CPPv4N3ddp5World7rebuildEv '
expected+='#_CPPv4N3ddp23DistributedDataParallel14gradient_readyEi '
expected+='#_CPPv4N3ddp30DistributedDataParallelOptions13deterministicE #_CPPv4N3ddp8libtorch5WorldE '
[[ $linked == "$expected" ]] || { echo "expected links to: $expected"; echo "found: $linked"; exit 1; }

# refused WORDS…: the site is not made, and each of WORDS is said.
refused() {
  local words
  if "$small/deploy/site.sh" "$work/small.site" >"$work/refused.log" 2>&1; then
    echo "expected a failure that says: $*"
    exit 1
  fi
  for words in "$@"; do
    grep -qF "$words" "$work/refused.log" || { cat "$work/refused.log"; echo "expected a failure that says: $words"; exit 1; }
  done
}
cp "$small/README.md" "$work/README.md"
echo '[page](docs/gone.md), [part](docs/page.md#gone), ![picture](gone.svg), [header](include/ddp/gone.hpp)' >>"$small/README.md"
refused docs/gone.md "'gone'" gone.svg include/ddp/gone.hpp
cp "$work/README.md" "$small/README.md"
sed -i 's/A gradient is written/@ref Gone/' "$small/include/ddp/world.hpp"
refused Gone

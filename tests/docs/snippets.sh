#!/usr/bin/env bash
# Every C++ snippet of README.md and docs/ compiles with <ddp/ddp.hpp>, with warnings as errors, and what else must hold of
# pages and that header.
# snippets.sh SOURCE_FOLDER GENERATED_INCLUDE_FOLDER WORK [the compiler is $CXX]
set -euo pipefail
source=$1 generated=$2 work=$3
here=$(realpath "$(dirname "$0")")
rm -rf "$work"
mkdir -p "$work"
cd "$source"
fail() { echo "$*"; exit 1; }

# ---- <ddp/ddp.hpp> is every public header but those that need CUDA's own, DLPack's, MPI's or PyTorch's, text(), and what these include
# for themselves
headers() { (cd include && find ddp -mindepth 2 -name '*.hpp' ! -path '*/detail/*' ! -path 'ddp/libtorch/*' ! -path ddp/device/cuda_types.hpp ! -path ddp/device/dlpack.hpp ! -path ddp/bootstrap/mpi.hpp ! -path ddp/core/text.hpp) | sort; }
included() { sed -n 's/^#include "\(ddp\/.*\/.*\)"$/\1/p' include/ddp/ddp.hpp | sort; }
diff <(headers) <(included) || fail "include/ddp/ddp.hpp: expected every public header (<), found others (>)"

# ---- snippets
written=0 fences=0
for page in README.md docs/*.md docs/*/*.md; do
  if [[ $page == docs/tutorial.md ]]; then continue; fi  # its files are one program: package.tutorial and libtorch.tutorial
  name=$(tr '[:upper:]/-' '[:lower:]__' <<<"${page%.md}") name=${name#docs_}
  count=$(awk -v page="$page" -v name="$name" -v out="$work" -f "$here/snippets.awk" "$page") || fail "in $page"
  ((written += count)) || true
  # Counted in another way, with other spellings of the language: none may be passed over.
  found=$(grep -ciE '^ *(```|~~~) *(c\+\+|cpp|cc|cxx|cuda|cu|hpp)' "$page" || true)
  ((found == count)) || fail "$page: expected $found snippets of C++, compiled $count: begin each with \`\`\`cpp"
  ((fences += found)) || true
done
((written >= 15)) || fail "expected at least 15 snippets, found $written: is the pattern still right?"

# A snippet may show a value without using it.
flags=(-std=c++20 -Wall -Wextra -Werror -Wno-unused-variable -fsyntax-only -I "$source/include" -I "$generated" -I "$source/examples" -I "$here")
status=0
for file in "$work"/*.cpp; do
  basename "$file"
  "${CXX:-c++}" "${flags[@]}" "$file" || status=1
done
((status == 0)) || fail "these snippets do not compile"

# ---- the check finds what it must find
for planted in 'ddp::NoSuchName x;' 'ddp::NamedTensor{.name = "b"};'; do
  printf '```cpp\n%s\n```\n' "$planted" >"$work/planted.md"
  awk -v page=planted.md -v name=guide -v out="$work" -f "$here/snippets.awk" "$work/planted.md" >"$work/count"
  [[ $(cat "$work/count") == 1 ]] || fail "expected one snippet in a planted page"
  if "${CXX:-c++}" "${flags[@]}" "$work/guide.cpp" 2>"$work/planted.log"; then fail "let through: $planted"; fi
done
echo "$written snippets"

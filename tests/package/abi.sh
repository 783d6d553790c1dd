#!/usr/bin/env bash
# deploy/abi/abi.sh refuses what breaks programs that are linked to the recorded library, and nothing else. Ends with 77
# where there is no abidiff.
# abi.sh SOURCE_FOLDER WORK
set -euo pipefail
source=$1 work=$2
command -v abidiff >/dev/null || { echo "SKIPPED: no abidiff here (package abigail-tools)"; exit 77; }
rm -rf "$work"
mkdir -p "$work/include/ddp"
header=$work/include/ddp/model.hpp
cat >"$work/model.hpp" <<'END'
#pragma once
#include <memory>
#include <vector>
namespace ddp {
enum class Kind { small, big };
struct Layer {
  int width = 0;
};
class Model {
 public:
  explicit Model(std::vector<Layer> const& layers, Kind kind);
  virtual ~Model();
  virtual void forward();
  int layers() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};
int trained_models();
}  // namespace ddp
END
cat >"$work/model.cpp" <<'END'
#include <ddp/model.hpp>
namespace ddp {
class Model::Impl {
 public:
  std::vector<Layer> layers;
};
Model::Model(std::vector<Layer> const& layers, Kind) : impl_(new Impl{layers}) {}
Model::~Model() = default;
void Model::forward() {}
int Model::layers() const { return static_cast<int>(impl_->layers.size()); }
int trained_models() { return 0; }
}  // namespace ddp
END

# build VERSION [EDIT…]: the library, from sources that sed has edited: ADDED stands for a line of the namespace.
build() {
  local version=$1
  shift
  sed -E "$@" "$work/model.hpp" >"$header"
  sed -E "$@" "$work/model.cpp" >"$work/built.cpp"
  "${CXX:-g++}" -std=c++20 "${DEBUG:--g}" -shared -fPIC -I "$work/include" -Wl,-soname,"libmodel.so.$version" \
    -Wl,--version-script="$source/runtime/exported_symbols.map" -o "$work/libmodel.so" "$work/built.cpp"
}
# expect passes|fails WORDS VERSION [EDIT…]
expect() {
  local expected=$1 words=$2 found=passes
  shift 2
  build "$@"
  "$source/deploy/abi/abi.sh" check "$work/libmodel.so" "$work/recording" >"$work/output" 2>&1 || found=fails
  if [[ $found != "$expected" ]] || ! grep -q "$words" "$work/output"; then
    echo "expected that it $expected with \"$words\" after: $*"
    cat "$work/output"
    exit 1
  fi
}
build 0.1 -e ''
"$source/deploy/abi/abi.sh" record "$work/libmodel.so" "$work/recording"

expect passes 'is kept' 0.1 -e ''
expect passes 'is kept' 0.1 -e 's/^int trained_models\(\)(;|.*\})$/&\nint lost_models()\1/'
expect passes 'is kept' 0.1 -e 's/^  std::vector<Layer> layers;/&\n  int more = 0;/'         # private
widened=(-e 's/^  int width = 0;/&\n  int height = 0;/')                                       # reached in a vector only
expect fails 'soname does not say so' 0.1 "${widened[@]}"
expect fails 'soname does not say so' 0.0 "${widened[@]}"
expect passes 'the soname announces' 0.2 "${widened[@]}"
expect passes 'the soname announces' 0.10 "${widened[@]}"
expect fails trained_models 0.1 -e '/^int trained_models/d'
expect fails trained_models 0.1 -e 's/^int trained_models/long trained_models/'                # no part of its symbol
expect fails 'Model::forward' 0.1 -e 's/^  virtual void forward\(\);/  virtual void prepare() {}\n&/'
expect fails 'Kind::big' 0.1 -e 's/small, big/small, medium, big/'
expect passes 'is kept' 0.1 -e 's/small, big/&, huge/'
DEBUG=-g1 expect fails 'has no types' 0.1 -e ''
echo 'not a library' >"$work/libmodel.so"
! "$source/deploy/abi/abi.sh" check "$work/libmodel.so" "$work/recording" 2>/dev/null ||
  { echo "expected that what is no library fails"; exit 1; }

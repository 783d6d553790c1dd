#!/usr/bin/env bash
# The Debian packages: what they say and hold, that lintian finds nothing, and that dpkg installs them into an empty folder, where a
# program is built and run, and removes all of it. Ends with 77 where cpack cannot make them.
# deb.sh BUILD_FOLDER WORK VERSION shared|static…
set -euo pipefail
build=$1 work=$2/deb version=$3
kinds=("${@:4}") missing=
for tool in dpkg-deb dpkg-shlibdeps file; do
  command -v "$tool" >/dev/null || { echo "SKIPPED: no $tool here (packages dpkg, dpkg-dev and file)"; exit 77; }
done
rm -rf "$work"
mkdir -p "$work"
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
architecture=$(dpkg --print-architecture)
runtime=libddp${version%%.*}
packages=()

# package NAME SECTION: the one that expect() looks at.
package() {
  local -r file=$work/$1_${version}_$architecture.deb
  [[ -f $file ]] || { echo "expected $file, found:"; ls "$work"; exit 1; }
  name=$1
  packages+=("$1")
  dpkg-deb -I "$file" >"$work/$1.information"
  dpkg-deb -c "$file" | awk '{print $1, $2, $6}' >"$work/$1.contents"
  expect information "^ Architecture: $architecture\$"
  expect information "^ Section: $2\$"
  expect information '^ Description: distributed data parallel training \('
  expect contents "^-rw-r--r-- root/root \./usr/share/doc/$1/copyright"
  if grep -vE ' \./(usr/((bin|include|lib|share)/.*)?)? *$' "$work/$1.contents"; then
    echo "$1 holds something outside of /usr"
    exit 1
  fi
}
expect() { grep -qE "$2" "$work/$name.$1" || { echo "expected a line like $2 in $name's $1"; exit 1; }; }
expect_no() { ! grep -E "$2" "$work/$name.$1" || { echo "expected no line like $2 in $name's $1"; exit 1; }; }

package libddp-dev libdevel
expect contents '^-rw-r--r-- root/root \./usr/include/ddp/ddp\.hpp'
expect contents '^-rw-r--r-- root/root \./usr/lib/.*/?libddp\.a'
expect contents '/cmake/ddp/ddp-config\.cmake'
expect contents '/pkgconfig/ddp\.pc'
expect_no contents '/bin/|libddp\.so\.'
package ddp-tools utils
expect information '^ Depends: .*libc6 \(>= .*libstdc\+\+6 \(>= '
expect contents '^-rwxr-xr-x root/root \./usr/bin/ddp-launch'
expect contents '^-rw-r--r-- root/root \./usr/lib/.*/?ddp/ddp_line_buffer\.so'
expect contents '^-rw-r--r-- root/root \./usr/share/man/man1/ddp-launch\.1\.gz'
expect contents '^-rw-r--r-- root/root \./usr/share/bash-completion/completions/ddp-launch'
expect_no contents '/include/|libddp\.'
if [[ " ${kinds[*]} " == *' shared '* ]]; then
  package "$runtime" libs
  expect information '^ Depends: .*libc6 \(>= .*libstdc\+\+6 \(>= '
  expect contents "\./usr/lib/.*/?libddp\.so\.${version%%.*}\$"
  expect_no contents '/bin/|/include/|libddp\.(a|so)$'
  dpkg-deb -e "$work/${runtime}_${version}_$architecture.deb" "$work/control"
  [[ $(<"$work/control/shlibs") == "libddp ${version%%.*} $runtime (>= $version)" ]]
  [[ $(<"$work/control/triggers") == 'activate-noawait ldconfig' ]]
  name=libddp-dev
  expect information "^ Depends: $runtime \(= $version\)\$"
fi
if command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error,warning "$work"/*.deb
else
  missing="lintian, which says what is wrong with a package"
fi

# An empty folder, where nothing is that the packages depend on. Their scripts run outside of it, and call this ldconfig.
mkdir -p "$work/root/var/lib/dpkg" "$work/stand-ins"
touch "$work/root/var/lib/dpkg/status"
printf '#!/bin/sh\necho called >>"%s"\n' "$work/ldconfig" >"$work/stand-ins/ldconfig"
chmod +x "$work/stand-ins/ldconfig"
dpkg_there() {
  PATH=$work/stand-ins:$PATH dpkg --root="$work/root" --force-depends --force-not-root --force-script-chrootless --log=/dev/null \
    "$@" >>"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; exit 1; }
}
if ((EUID != 0)); then
  echo "SKIPPED: the packages hold what they must; that dpkg installs and removes them was not tried, which takes root"
  exit 77
fi
dpkg_there --install "$work"/*.deb
[[ -s $work/ldconfig ]]
ln -s root/usr "$work/installed"
for kind in "${kinds[@]}"; do
  "${BASH_SOURCE[0]%/*}/use.sh" find_package "$kind" "$work" consumer
done
dpkg_there --purge "${packages[@]}"
[[ ! -e $work/root/usr ]] || { echo "left behind:"; find "$work/root/usr"; exit 1; }
[[ -z $missing ]] || { echo "SKIPPED: all else is right; there is no $missing"; exit 77; }

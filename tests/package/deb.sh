#!/usr/bin/env bash
# The Debian package: what it says and holds, and that its ddp-launch starts. Ends with 77 where cpack cannot make one.
# deb.sh BUILD_FOLDER WORK VERSION
set -euo pipefail
build=$1 work=$2/deb version=$3
for tool in dpkg-deb dpkg-shlibdeps; do
  command -v "$tool" >/dev/null || { echo "SKIPPED: no $tool here (packages dpkg and dpkg-dev)"; exit 77; }
done
rm -rf "$work"
mkdir -p "$work"
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
architecture=$(dpkg --print-architecture)
package=$work/ddp_${version}_$architecture.deb
[[ -f $package ]] || { echo "expected $package, found:"; ls "$work"; exit 1; }

dpkg-deb -I "$package" >"$work/information"
expect() { grep -qE "$2" "$work/$1" || { echo "expected a line like $2 in the package's $1"; exit 1; }; }
expect information '^ Package: ddp$'
expect information "^ Architecture: $architecture\$"
expect information '^ Depends: .*libc6 \(>= .*libstdc\+\+6 \(>= '
expect information 'postinst'  # runs ldconfig
expect information '^ Section: libs$'
expect information '^ Description: Distributed data parallel training'
dpkg-deb -c "$package" | awk '{print $1, $2, $6}' >"$work/contents"
expect contents '^-rwxr-xr-x root/root \./usr/bin/ddp-launch'
expect contents '^-rw-r--r-- root/root \./usr/include/ddp/ddp\.hpp'
expect contents '^-rw-r--r-- root/root \./usr/lib/.*/?libddp\.a'
expect contents '^-rw-r--r-- root/root \./usr/share/doc/ddp/copyright'
expect contents '^-rw-r--r-- root/root \./usr/share/man/man1/ddp-launch\.1'
expect contents '^-rw-r--r-- root/root \./usr/share/bash-completion/completions/ddp-launch'
expect contents '/cmake/ddp/ddp-config\.cmake'
expect contents '/pkgconfig/ddp\.pc'
if grep -vE ' \./(usr/((bin|include|lib|share)/.*)?)? *$' "$work/contents"; then
  echo "the package holds something outside of /usr"
  exit 1
fi
dpkg-deb -x "$package" "$work/root"
[[ $("$work/root/usr/bin/ddp-launch" --version) == "ddp-launch $version" ]]
"$work/root/usr/bin/ddp-launch" --cpus 2 --no-log-files -- echo from the package | sort | tee "$work/output"
[[ $(grep -c 'from the package' "$work/output") == 2 ]]

#!/bin/bash
# Makes the packages of what `make install` installs, and checks them: called by `make deb` and `make rpm`.
#   packaging/build.sh deb|rpm VERSION BUILD_DIR [arm64]
# The packages lie in BUILD_DIR/pkg/deb or .../rpm, beside those of the other architecture. Programs are those of
# BUILD_DIR/release, so that what was compiled and tested is what is packaged. A dot-file of BUILD_DIR/pkg/... holds the log.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1 version=$2 build=$3 arch=${4:-$(dpkg --print-architecture 2>/dev/null || uname -m)}
top=$PWD here=$(dpkg --print-architecture 2>/dev/null || uname -m) cross=''
mkdir -p "$3/pkg/$1"
out=$(realpath "$3/pkg/$1")
maintainer=${PKG_MAINTAINER:-Pantheon maintainers <pantheon@users.noreply.github.com>}
case $arch in aarch64) arch=arm64 ;; x86_64) arch=amd64 ;; esac
case $here in aarch64) here=arm64 ;; x86_64) here=amd64 ;; esac
scripts/deps.sh package

# MAKEFLAGS brings what the user set (CFLAGS, V, VERSION, ...); this comes last and wins.
args=(FLAVOUR=release O="$build")
if [ "$arch" != "$here" ]; then
    [ "$arch" = arm64 ] || { echo "PKG_ARCH=$arch: only arm64 is cross-built" >&2; exit 64; }
    cross=aarch64-linux-gnu- build=build-aarch64
    scripts/deps.sh cross "$build/sysroot"
    args=(FLAVOUR=release O="$build" CC="${cross}gcc")
fi
bin=$build/release
make --no-print-directory "${args[@]}" "$bin/pantheond" "$bin/pantheon-reconcile" "$bin/pantheon-cpu" "$bin/libpantheon.a"
export PANTHEON_TOP=$top PANTHEON_MAKE="${args[*]}" PANTHEON_SYSROOT=${cross:+$top/$build/sysroot}
when=$(git -c safe.directory="$top" log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$when}
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The whole of a log is wanted only when something failed.
quietly() {
    local log=$out/.log.$arch
    "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "packaging: the whole log is $log" >&2; exit 1; }
}

make_deb() {
    local source=$work/pantheon-$version list
    mkdir "$source"
    cp -R packaging/deb "$source/debian"
    sed -i "s|@maintainer@|$maintainer|" "$source/debian/control"
    { cat packaging/deb/copyright && sed 's/^$/./; s/^/ /' LICENSE; } >"$source/debian/copyright"
    printf 'pantheon (%s-1) unstable; urgency=medium\n\n  * What changed is in changelog.gz.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" >"$source/debian/changelog"
    [ -z "$cross" ] || cp "$build/sysroot/.shlibs" "$source/debian/shlibs.local"
    # -d: of another architecture's build dependencies dpkg knows nothing (deps.sh has seen to them)
    (cd "$source" && quietly dpkg-buildpackage -us -uc -b ${cross:+-d "-a$arch"})
    list=$(cd "$work" && ls ./*.deb ./*.changes ./*.buildinfo)
    (cd "$work" && lintian --allow-root --fail-on error,warning --tag-display-limit 0 ./*.changes)
    rm -f "$out"/*_"$arch".{deb,changes,buildinfo}
    (cd "$work" && mv $list "$out/")
    (cd "$out" && ls ./*_"$arch".deb) | sed "s|^\.|$out|"
}

make_rpm() {
    local target
    target=$(echo "$arch" | sed 's/^amd64$/x86_64/; s/^arm64$/aarch64/')
    # --nodeps: Debian's rpm knows no packages of Debian's. On other systems the compiler above has shown that all is there.
    quietly rpmbuild -bb --nodeps --target "$target" --define "_topdir $work" --define "pantheon_version $version" \
        --define "pantheon_top $top" --define "pantheon_make ${args[*]}" --define "pantheon_strip ${cross}strip" \
        --define "packager $maintainer" packaging/rpm/pantheon.spec
    rpmlint --strict --config packaging/rpm/rpmlint.toml "$work"/RPMS/*/*.rpm
    rm -f "$out"/*."$target".rpm
    mv "$work"/RPMS/*/*.rpm "$out/"
    ls "$out"/*."$target".rpm
}

case $kind in
deb) make_deb ;;
rpm) make_rpm ;;
*) echo "usage: $0 deb|rpm VERSION BUILD_DIR [arm64]" >&2; exit 64 ;;
esac

#!/bin/sh
# From a clone to an installed pantheon: what the build needs, the binary for the hardware found, `make install`. It says what it will do and asks
# once; nothing is enabled and nothing is started.   ./install.sh --help
set -eu
cd "$(dirname "$0")"

usage() {
    cat <<'EOF'
usage: ./install.sh [OPTIONS]

Installs what the build needs, builds pantheon for the hardware of this machine, and installs it. Asks before it does.

  --backend NAME   cpu, cuda, tt, metal, or auto: what the hardware asks for (the default)
  --prefix DIR     where it goes (default /usr/local; below your home directory no root is needed)
  --no-install     build only
  --dry-run        say what would be done, and do nothing
  --yes            do not ask
  --help           this text
EOF
}
die() { echo "install.sh: $1" >&2; exit "${2:-1}"; }

backend=auto prefix=/usr/local install=1 dry='' yes=''
while [ $# -gt 0 ]; do
    case $1 in
    --backend | --prefix)
        [ $# -ge 2 ] || die "$1 needs a value (--help says more)" 64
        if [ "$1" = --backend ]; then backend=$2; else prefix=$2; fi
        shift
        ;;
    --no-install) install='' ;;
    --dry-run) dry=1 ;;
    --yes | -y) yes=1 ;;
    --help | -h) usage; exit 0 ;;
    *) die "$1 is no option (--help says more)" 64 ;;
    esac
    shift
done
case $prefix in
/*) prefix=${prefix%/} ;;
*) die "--prefix $prefix: a path from / on" 64 ;;
esac

# --- what is here ---

# One line for each kind of hardware that a backend is for, by the vendor's number on the PCI bus: no tool or driver needs to be there.
have='' found=''
pci=${PANTHEON_PCI:-/sys/bus/pci/devices} # elsewhere in tests
for d in "$pci"/*; do
    [ -r "$d/vendor" ] || continue
    case $(cat "$d/vendor") in
    0x10de) case $(cat "$d/class") in 0x03*) have="$have cuda" found="$found
  NVIDIA card at ${d##*/} (backend cuda)" ;; esac ;;
    0x1e52) have="$have tt" found="$found
  Tenstorrent card at ${d##*/} (backend tt)" ;;
    esac
done
case $(uname -s) in
Linux) ;;
Darwin) die "This is macOS: the backend metal and its programs are not in this version, which is for Linux." ;;
*) die "This is $(uname -s): this version is for Linux." ;;
esac
case $(uname -m) in
x86_64 | aarch64) found="${found}
  $(uname -m) cpu (backend cpu)" ;;
*) die "This is a $(uname -m) machine: this version is for x86_64 and aarch64." ;;
esac

# The first that this version builds; what it does not is said, not hidden.
built=' cpu '
lacks=''
case $backend in
auto)
    backend=cpu
    for b in $have; do
        case $built in
        *" $b "*) backend=$b; break ;;
        *) case " $lacks " in *" $b "*) ;; *) lacks="$lacks $b" ;; esac ;;
        esac
    done
    ;;
cpu | cuda | tt | metal)
    case $built in *" $backend "*) ;; *) die "The backend $backend is not in this version; there is:$built" ;; esac
    ;;
*) die "--backend $backend: cpu, cuda, tt, metal or auto" 64 ;;
esac

# Jobs: one a core, as far as a compiler's memory goes (1 GiB each).
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null || echo 1)
jobs=$cores
[ "${gib:-1}" -ge "$jobs" ] || jobs=${gib:-1}
[ "$jobs" -ge 1 ] || jobs=1

# Below a home directory everything is the user's own, the configuration too; elsewhere it is /etc's.
sysconfdir=/etc
case $prefix in "${HOME:-/nonexistent}" | "${HOME:-/nonexistent}"/*) sysconfdir=$prefix/etc ;; esac

# The closest folder that is there decides who may write.
writable() {
    w=$1
    while [ ! -e "$w" ]; do w=$(dirname "$w"); done
    [ -w "$w" ]
}
root=''
if [ -n "$install" ] && { ! writable "$prefix" || ! writable "$sysconfdir"; }; then root=sudo; fi

# --- what will be done ---

missing=$(scripts/deps.sh missing) || exit 1
[ -z "$missing" ] || [ "$(id -u)" = 0 ] || need_root=1
if [ -n "$root${need_root:-}" ] && ! command -v sudo >/dev/null 2>&1; then
    if [ -n "${need_root:-}" ]; then die "These packages are missing, and there is no sudo; as root:  apt-get install --no-install-recommends $missing"; fi
    die "$prefix is not yours to write, and there is no sudo: run this as root, or with --prefix below your home directory."
fi
echo "Found:$found"
[ -z "$lacks" ] || echo "Not in this version yet:$lacks. That hardware stays unused, and the cpu computes."
echo "This will"
[ -z "$missing" ] || echo "  install with ${need_root:+sudo }apt-get: $missing"
echo "  build the backend $backend here ($jobs jobs)"
[ -z "$install" ] || echo "  install below $prefix, with its configuration in $sysconfdir/pantheon${root:+ (with sudo)}"
[ -z "$dry" ] || exit 0
if [ -z "$yes" ]; then
    { [ -t 0 ] && [ -t 1 ]; } || die "There is no terminal to ask on: --yes does it without a question, --dry-run does nothing."
    printf 'Go on? [Y/n] '
    read -r answer
    case $answer in '' | y | Y | yes | Yes) ;; *) die 'Nothing was done.' ;; esac
fi

# --- doing it ---

scripts/deps.sh build </dev/null # asked above
make --no-print-directory -j"$jobs" all
scripts/assert_backend.sh ./pantheon "$backend"
if [ -z "$install" ]; then
    echo "Built: ./pantheon --help, ./pantheond --help, ./pantheon-reconcile --help"
    exit 0
fi
$root make --no-print-directory install prefix="$prefix" sysconfdir="$sysconfdir"
"$prefix/bin/pantheon" --version
cat <<EOF

Installed; nothing is enabled or started. Next:
  1. declare a model in $sysconfdir/pantheon/models.yaml (docs/quickstart.md)
  2. $prefix/bin/pantheon-reconcile --check $sysconfdir/pantheon/models.yaml
EOF
if [ "$sysconfdir" = /etc ] && [ -d /run/systemd/system ]; then
    echo "  3. as root: systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload; systemctl enable --now pantheond"
else
    echo "  3. $prefix/sbin/pantheond --config $sysconfdir/pantheon/models.yaml"
fi

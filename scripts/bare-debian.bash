# For scripts that try something in a bare Debian: sourced, from the root of the repository. What it makes is in WORK,
# with the Debian in ROOT, and goes when the script ends, with what was mounted there.

SCRIPT=$(basename "$0")
say() { printf '%s: %s\n' "$SCRIPT" "$*"; }
skip() {
    say "skipped: $*" >&2
    exit 77
}
fail() {
    say "FAILED: $*" >&2
    exit 1
}
# timed WHAT COMMAND…: runs it, and tells how long that took.
timed() {
    local what=$1 begin=$SECONDS
    shift
    "$@" || return
    say "$what: $((SECONDS - begin)) s"
}

for tool in debootstrap "${TOOLS[@]}"; do
    command -v "$tool" >/dev/null || skip "$tool is not installed (apt-get install ${PACKAGES:-debootstrap})"
done
[ "$(id -u)" = 0 ] || skip "a chroot needs root"

WORK=$(mktemp -d)
ROOT=$WORK/root
MOUNTED=()
cleanup() {
    # What the chroot started is in it; what is mounted there is ours.
    local at
    for ((at = ${#MOUNTED[@]} - 1; at >= 0; at--)); do
        umount "${MOUNTED[at]}" || umount --lazy "${MOUNTED[at]}" || true
    done
    rm -rf --one-file-system "$WORK"
}
trap cleanup EXIT

# mounted OPTIONS… WHAT PLACE: below ROOT, until the script ends.
mounted() {
    local place=$ROOT${*: -1}
    mkdir -p "$place"
    mount "${@:1:$#-1}" "$place"
    MOUNTED+=("$place")
}

. /etc/os-release
MIRROR=$(sed -nE 's/^URIs: (\S+).*/\1/p; s/^deb (\[.*\] )?(http\S+) .*/\2/p' /etc/apt/sources.list \
    /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n1 || true)
MIRROR=${MIRROR:-http://deb.debian.org/debian}
SUITE=${SUITE:-$VERSION_CODENAME}
# At its end debootstrap has all file systems of the machine written out (sync), and would wait for a mount of somebody
# else's that hangs. In mounts of its own, its own file system is enough.
bare() {
    mkdir "$WORK/bin"
    cp "$(command -v sync)" "$WORK/bin/sync"
    printf '#!/bin/sh\nexec "%s" -f "%s"\n' "$WORK/bin/sync" "$WORK" >"$WORK/bin/own-sync"
    chmod 755 "$WORK/bin/own-sync"
    # shellcheck disable=SC2016
    unshare --mount sh -ec 'mount --bind "$1" "$2"; shift 2; exec debootstrap "$@"' sh \
        "$WORK/bin/own-sync" "$(command -v sync)" --variant=minbase "$SUITE" "$ROOT" "$MIRROR" \
        >"$WORK/debootstrap.log" 2>&1 ||
        { tail -n 20 "$WORK/debootstrap.log" >&2; skip "debootstrap has made no $SUITE of $MIRROR"; }
    # Nothing may be started there.
    printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
    chmod 755 "$ROOT/usr/sbin/policy-rc.d"
    mounted -t proc proc /proc
}

# Variables of the machine that a script has put into INSIDE are known there, too.
INSIDE=()
inside() {
    chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
        "${INSIDE[@]}" "$@"
}

packages() {
    inside apt-get install -qqy --no-install-recommends "$@" >>"$WORK/apt.log" 2>&1 ||
        { tail -n 20 "$WORK/apt.log" >&2; fail "apt install $*"; }
}

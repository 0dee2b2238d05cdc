#!/bin/bash
# Boots other kernels in a virtual machine without disk or network and runs tests there: the
# program between network namespaces, and the code that talks to nf_tables. What boots is a
# kernel image of Debian; the rest of the machine is a file system in memory, made of this
# system's own programs.
#
#     run.sh KERNEL...      a package linux-image-*, a file of one, or a directory into
#                           which one was unpacked
#
# TESTS, KERNEL_TESTS and SCRIPTS are patterns of the tests of appliance/e2e, nft/kernel and
# appliance/test/script, with "none" for none of them; BENCH is one of benchmarks of nft/kernel and
# appliance/bench, in a machine whose clock counts instructions, a nanosecond each. MINUTES is how
# long a machine may take. WITHOUT is a pattern of files of modules that are left out. STRICT=1: a
# test that is skipped is a failure. SVCCTL_BINARY is a program to test instead of that of this tree.
# What the machine printed stays in the file that is named in the end. Exit status 2: a kernel could not be downloaded.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
: "${TESTS:=$(grep -v '^#' "$here/tests" | paste -sd '|')}"
: "${KERNEL_TESTS:=.}"
: "${SCRIPTS:=$(grep -v '^#' "$here/scripts" | paste -sd '|')}"
: "${BENCH:=none}" "${MINUTES:=60}" "${WITHOUT:=}" "${STRICT:=}"
[ $# -gt 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }

sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
missing=
for pair in qemu-system-x86_64:qemu-system-x86 pppd:ppp pppoe-server:pppoe busybox:busybox-static nft:nftables conntrack:conntrack sysctl:procps depmod:kmod xz:xz-utils zstd:zstd dpkg:dpkg; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
done
if [ -n "$missing" ]; then
    echo "kernels: installing$missing"
    # shellcheck disable=SC2086 # $missing is a list
    { $sudo apt-get -qq update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $missing; } >/dev/null
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build makes the programs that run in the machine, all of them static.
build() {
    mkdir "$work/programs"
    cd "$root"
    export CGO_ENABLED=0
    if [ -n "${SVCCTL_BINARY:-}" ]; then
        cp "$SVCCTL_BINARY" "$work/programs/svcctl"
    else
        go build -trimpath -ldflags '-s -w' -o "$work/programs/svcctl" ./cmd/svcctl
    fi
    [ "$TESTS" = none ] || go test -c -ldflags '-s -w' -o "$work/programs/e2e.test" ./appliance/e2e
    [ "$KERNEL_TESTS$BENCH" = nonenone ] || go test -c -ldflags '-s -w' -o "$work/programs/kernel.test" ./nft/kernel
    [ "$SCRIPTS" = none ] || go test -c -ldflags '-s -w' -o "$work/programs/script.test" ./appliance/test/script
    [ "$BENCH" = none ] || go test -c -ldflags '-s -w' -o "$work/programs/bench.test" ./appliance/bench
}

# unpack prints the directory with the files of a kernel.
unpack() {
    local dir deb package
    if [ -d "$1" ]; then
        echo "$1"
        return
    fi
    dir=$(mktemp -d "$work/kernel.XXXX")
    if [ -f "$1" ]; then
        dpkg -x "$1" "$dir/files"
    else
        apt-cache show "$1" >/dev/null 2>&1 || $sudo apt-get -qq update >&2 || return 2
        # linux-image-amd64 and its like only name the newest one.
        package=$(apt-cache depends --important "$1" | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
        : "${package:=$1}"
        # Of newer kernels the image and the modules are packages that this one depends on.
        (cd "$dir" && apt-get -qq download "$package" $(apt-cache depends --important "$package" |
            sed -n 's/.*Depends: \(linux-\(binary\|modules\)-[0-9].*\)/\1/p') >&2) || return 2
        for deb in "$dir"/*.deb; do dpkg -x "$deb" "$dir/files"; done
    fi
    echo "$dir/files"
}

# program puts one of this system's programs, and the libraries it needs, into a machine.
program() {
    local path file
    path=$(command -v "$2")
    cp "$path" "$1/bin/"
    ldd "$path" | grep -o '/[^ ]*' | while read -r file; do
        mkdir -p "$1$(dirname "$file")"
        cp -L "$file" "$1$file"
    done
}

# machine makes the file system of a machine for the kernel in a directory, of a version.
machine() {
    local files=$1 version=$2 m=$work/machine p from
    rm -rf "$m"
    mkdir -p "$m"/{bin,sbin,dev,etc,proc,run,sys,tmp,var/run,usr/bin,lib/modules/"$version"/kernel}
    cp "$(command -v busybox)" "$m/bin/busybox"
    for p in nft conntrack sysctl pppd pppoe pppoe-server; do program "$m" "$p"; done
    mkdir -p "$m/usr/lib"
    cp -r /usr/lib/pppd "$m/usr/lib/"
    cp "$work/programs/"* "$m/bin/"
    mkdir "$m/scripts" "$m/examples"
    cp -r "$root/appliance/test/script/testdata" "$m/scripts/"
    cp -r "$root/examples/uplink" "$m/examples/"
    printf '%s\n' "$KERNEL_TESTS" "$TESTS" "$SCRIPTS" "$BENCH" >"$m/etc/patterns"
    cp "$here/init" "$m/init"
    cp /etc/protocols "$m/etc/" 2>/dev/null || true
    from=$files/lib/modules/$version
    [ -d "$from" ] || from=$files/usr/lib/modules/$version
    # A kernel with PPP has no excuse to skip its test.
    [ ! -d "$from/kernel/drivers/net/ppp" ] || mkdir "$m/etc/ppp"
    for p in net/netfilter net/ipv4 net/ipv6 net/bridge net/llc net/802 net/sctp drivers/net/veth.ko drivers/net/dummy.ko drivers/net/tun.ko drivers/net/ppp drivers/net/slip lib crypto arch/x86/crypto; do
        (cd "$from" && find kernel/"$p"* -name '*.ko*' 2>/dev/null | cpio_pass "$m/lib/modules/$version")
    done
    [ -z "$WITHOUT" ] || find "$m/lib/modules" -name "$WITHOUT" -delete
    find "$m/lib/modules" -name '*.ko.xz' -exec xz -d {} +
    find "$m/lib/modules" -name '*.ko.zst' -exec zstd -dq --rm {} +
    cp "$from"/modules.builtin "$from"/modules.order "$m/lib/modules/$version/"
    depmod -b "$m" "$version" 2>/dev/null
    (cd "$m" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initramfs"
}

# cpio_pass copies the files it reads the names of, with their directories.
cpio_pass() {
    local file
    while read -r file; do
        mkdir -p "$1/$(dirname "$file")"
        cp "$file" "$1/$file"
    done
}

# boot runs the tests on a kernel and says how that went.
boot() {
    local files image version console processors=(-smp 2) append=
    files=$(unpack "$1") || return
    # The clock of the machine is the number of instructions: of one processor, which does not wait.
    [ "$BENCH" = none ] || processors=(-smp 1 -icount shift=0,sleep=off) append=tsc=reliable
    # /boot/vmlinuz-VERSION, or the directory of modules, whose name is the version.
    image=$(find "$files" -name 'vmlinuz*' -type f | head -n 1)
    if [ -z "$image" ]; then
        echo "kernels: $1 has no kernel image: the newer ones are in a package linux-binary-*, with modules in linux-modules-*; unpack both into one directory" >&2
        return 1
    fi
    case $image in
    */vmlinuz) version=$(basename "$(dirname "$image")") ;;
    *) version=${image##*/vmlinuz-} ;;
    esac
    machine "$files" "$version"
    console=${CONSOLE:-$(mktemp /tmp/kernel-"$version".XXXX)}
    timeout --foreground "${MINUTES}m" qemu-system-x86_64 -accel "${ACCEL:-tcg}" -cpu max "${processors[@]}" -m 2048 -nodefaults -no-reboot \
        -display none -serial "file:$console" -kernel "$image" -initrd "$work/initramfs" \
        -append "console=ttyS0 loglevel=4 panic=-1 $append" </dev/null || true
    tr -d '\r' <"$console" | grep -aE '^(--- |FAIL|kernels: |Benchmark|\|)' || true
    if ! tr -d '\r' <"$console" | grep -aq '^kernels: all passed' || { [ -n "$STRICT" ] && grep -aq '^ *--- SKIP' "$console"; }; then
        echo "kernels: $version FAILED; its console is in $console" >&2
        return 1
    fi
    echo "kernels: $version passed; its console is in $console"
}

build
failed=0
for kernel; do boot "$kernel" || { code=$?; [ "$failed" -eq 1 ] || failed=$code; }; done
exit "$failed"

#!/bin/bash
# What a guest (`cargo xtask guest`) is made of, from Debian 12's packages for ARCHITECTURE (arm64, armhf):
#   system    FOLDER/vmlinuz, busybox, dash: a kernel, a static busybox, a shell
#   programs  FOLDER/programs/: dynamic programs to probe, with the libraries that they load
#   tests     FOLDER/tests/: what the scenario tests use
# Touches neither installed packages nor apt's own state, adds no architecture to dpkg, needs no
# root.
# usage: setup-guest.sh ARCHITECTURE FOLDER system|programs|tests
set -euo pipefail
usage="usage: $0 ARCHITECTURE FOLDER PART"
architecture=${1:?$usage}
folder=${2:?$usage}
part=${3:?$usage}
case $architecture in
    arm64) kernels=linux-image-cloud-arm64 binutils=(binutils-aarch64-linux-gnu libgprofng0) ;;
    armhf) kernels=linux-image-armmp binutils=(binutils-arm-linux-gnueabihf) ;;
    *) echo "no guest of $architecture: arm64 or armhf" >&2; exit 2 ;;
esac
case $part in
    system) packages=(busybox-static dash) ;;
    programs)
        packages=(
            grep libpcre2-8-0
            redis-server redis-tools
            libatomic1 libcap2 libgcrypt20 libgpg-error0 libhiredis0.14 libjemalloc2 liblua5.1-0 liblz4-1 liblzf1
            liblzma5 libssl3 libsystemd0 libzstd1 lua-bitop lua-cjson
            libc6 libgcc-s1 libstdc++6
        ) ;;
    tests)
        packages=(
            bash binutils "${binutils[@]}" procps python3-minimal python3.11-minimal strace bsdutils util-linux
            libpython3.11-minimal libpython3.11-stdlib
            binutils-common libbinutils libblkid1 libcap-ng0 libctf0 libctf-nobfd0 libbz2-1.0 libexpat1 libffi8 libjansson4
            liblzma5 libmount1 libncursesw6 libpcre2-8-0 libproc2-0 libselinux1 libsmartcols1 libsqlite3-0 libssl3
            libsystemd0 libtinfo6 libudev1 libunwind8 libuuid1 libzstd1 libcap2 libgcrypt20 libgpg-error0 liblz4-1 zlib1g
            libc-bin libc6 libgcc-s1 libstdc++6
        ) ;;
    *) echo "no part $part: system, programs or tests" >&2; exit 2 ;;
esac

# Whoever comes second waits until the first has unpacked everything.
mkdir -p "$folder"
exec 9> "$folder/.lock"
flock 9
stamp=$folder/.$part
wanted=${packages[*]}
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0
echo "setup: fetching the $part of the $architecture guest" >&2

# The machine's own mirror.
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | sort -u | head -1)}
[ -n "$mirror" ] || { echo "apt knows no Debian 12 mirror: run apt-get update" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,download,unpacked}
: > "$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" > "$work/sources.list"
cat > "$work/apt.conf" <<S
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/nonexistent";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Acquire::Languages "none";
APT::Sandbox::User "";
S
export APT_CONFIG=$work/apt.conf
apt-get -qq update
if [ "$part" = system ]; then
    # The package without a version depends on the one with the kernel.
    kernel=$(apt-cache depends --important "$kernels" | sed -n 's/^ *Depends: //p')
    packages+=("$kernel")
fi
(cd "$work/download" && apt-get -qq download "${packages[@]}")

for package in "$work"/download/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done

if [ "$part" = system ]; then
    cp "$work/unpacked/bin/busybox" "$work/unpacked/bin/dash" "$folder"
    # A compressed image is unpacked here, where it costs less than in the guest. That of armhf unpacks itself.
    image=$(echo "$work"/unpacked/boot/vmlinuz-*)
    gzip -dc "$image" > "$folder/vmlinuz" 2>/dev/null || cp "$image" "$folder/vmlinuz"
else
    rm -rf "$work"/unpacked/usr/share "$work"/unpacked/{lib,usr/lib}/systemd "$work"/unpacked/usr/lib/*/gconv
    rm -rf "$folder/$part"
    cp -a "$work/unpacked" "$folder/$part"
fi
echo "$wanted" > "$stamp"

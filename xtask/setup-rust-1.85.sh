#!/bin/bash
# A private Rust 1.85 toolchain from Debian 12's packages, unpacked into PREFIX: for the check that the oldest
# supported compiler is enough. Touches neither installed packages nor apt's own state, needs no root.
# usage: setup-rust-1.85.sh PREFIX
set -euo pipefail
prefix=${1:?usage: $0 PREFIX}
version=${RUST_WEB_VERSION:-1.85.0+dfsg3-1~deb12u3}
std=libstd-rust-web-${version:0:4}
[ -x "$prefix/bin/rustc" ] && [ "$(cat "$prefix/.version" 2>/dev/null)" = "$version" ] && exit 0

# The machine's own mirror.
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | sort -u | head -1)}
[ -n "$mirror" ] || { echo "apt knows no Debian 12 mirror: run apt-get update" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,download,unpacked}
: > "$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" > "$work/sources.list"
cat > "$work/apt.conf" <<S
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
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
(cd "$work/download" && apt-get -qq download \
    "rustc-web=$version" "cargo-web=$version" "$std=$version" "libstd-rust-web-dev=$version" libllvm19)
for package in "$work"/download/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done

# rustc finds its sysroot from where librustc_driver lies, and the programs have no RUNPATH.
rm -rf "$prefix"
mkdir -p "$prefix"
cp -a "$work/unpacked/usr/." "$prefix/"
rm -rf "$prefix/share/doc" "$prefix/share/man"
mkdir -p "$prefix/libexec/bin"
for program in rustc rustdoc cargo; do
    [ -e "$prefix/bin/$program" ] || continue
    mv "$prefix/bin/$program" "$prefix/libexec/bin/$program"
    cat > "$prefix/bin/$program" <<S
#!/bin/sh
p=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
LD_LIBRARY_PATH=\$p/lib/x86_64-linux-gnu\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} exec "\$p/libexec/bin/$program" "\$@"
S
    chmod +x "$prefix/bin/$program"
done
echo "$version" > "$prefix/.version"
"$prefix/bin/rustc" -V

#!/bin/sh
# Tests the set-up on a host without packages. Makes a minimal root directory of one Debian release (apt, mount and the
# certificates; no Node, no compiler, no runsc) with a clone of this repository. Runs `./kontor up` there, in its own
# mount and process namespaces. The test is opt-in (`kontor test --fresh-root`), because it fetches every package again
# and takes some minutes.
#
#   sh e2e/fresh-root.sh [bookworm|trixie]
#
# The network namespace and the control groups are those of the host, so the test uses other ports and another instance
# number. It enters the root directory by pivot_root: in a plain chroot the kernel refuses user namespaces (unshare(2),
# EPERM).
set -eu

port=18080
tls_port=18443
instance=62
product=$(cd -- "$(dirname -- "$0")/.." && pwd)

if [ "${1:-}" = inside ]; then
  root=$2
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  cd "$root"
  mkdir -p .outside
  pivot_root . .outside
  exec chroot . /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    KONTOR_INSTANCE="$instance" KONTOR_TLS_PORT="$tls_port" sh -c '
      umount -l /.outside && rmdir /.outside
      cd /opt/kontor || exit 1
      # Machines outlive their server, so they are killed here.
      stop() {
        ./kontor down
        node_modules/.bin/node -e "import(\"./e2e/support/clean.ts\").then((clean) => clean.removeHostTraces(\"/var/lib/kontor\"))"
        # The SIGKILL at the end of a namespace does not kill a frozen process (cgroup-v1/freezer-subsystem.rst).
        for state in /sys/fs/cgroup/freezer/kontor"$KONTOR_INSTANCE"/*/freezer.state; do
          if [ -f "$state" ]; then echo THAWED >"$state"; fi
        done
      }
      ./kontor up --detach --port '"$port"' || { echo "✗ up failed; what this root can do:"; ./kontor doctor; stop; exit 1; }
      echo "── a second up only points at the first"
      ./kontor up --detach --port '"$port"' || { stop; exit 1; }
      echo "── down"
      ./kontor down || exit 1
      echo "── a later start: nothing to install, nothing reset"
      ./kontor up --detach --port '"$port"' && stop'
fi

[ "$(id -u)" = 0 ] || { echo "fresh-root.sh: needs root" >&2; exit 1; }
root=$(mktemp -d /var/tmp/kontor-fresh-root.XXXXXX)
clean_up() {
  # Processes and mounts ended with their namespaces. Objects in the host's network and control groups remain.
  for family in inet netdev ip; do nft delete table "$family" "kontor$instance" 2>/dev/null || true; done
  find /sys/fs/cgroup -depth -type d -path "*/kontor$instance*" -exec rmdir {} + 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

codename=${1:-bookworm}
started=$(date +%s)
echo "── a minimal root of $codename"
# The packages come from the host's own mirrors.
(cd "$product" && CODENAME=$codename node_modules/.bin/node --input-type=module -e '
  const { hostMirrors, sourcesList } = await import("./runtime/src/rootfs/sources.ts");
  process.stdout.write(sourcesList(await hostMirrors(), process.env.CODENAME, ["main"]));
') | mmdebstrap --quiet --variant=apt --include=ca-certificates,mount "$codename" "$root" -
for file in /etc/npmrc /usr/etc/npmrc /usr/local/etc/npmrc /root/.npmrc /etc/resolv.conf /etc/hosts; do
  if [ -f "$file" ]; then mkdir -p "$root${file%/*}" && cp -L "$file" "$root$file"; fi
done
if ls /usr/local/share/ca-certificates/*.crt >/dev/null 2>&1; then
  mkdir -p "$root/usr/local/share/ca-certificates"
  cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
  chroot "$root" update-ca-certificates >/dev/null 2>&1
fi
git clone -q --no-hardlinks "$product" "$root/opt/kontor"
echo "✓ root made ($(($(date +%s) - started)) s)"

started=$(date +%s)
status=0
unshare --mount --pid --fork --kill-child --propagation private sh "$0" inside "$root" || status=$?
if [ "$status" = 0 ]; then echo "✓ set-up in a fresh root ($(($(date +%s) - started)) s)"; else echo "✗ set-up in a fresh root"; fi
exit "$status"
